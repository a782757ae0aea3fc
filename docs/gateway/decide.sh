curl --silent "$GATEWAY/decide" \
  --header "Authorization: Bearer $TOKEN" \
  --data '{"charges": [{"limit": "mail", "identity": "ada@example.org"}]}'
# {"allowed": true, "decisions": [{"limit": "mail", "allowed": true, "granted": 1, "remaining": 99, …}]}
