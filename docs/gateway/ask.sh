curl --silent "$GATEWAY/json" --header "X-RateLimit-Secret: $SECRET" --data '{
  "domain": "site",
  "descriptors": [{"entries": [{"key": "generic_key", "value": "mail"}, {"key": "user", "value": "7"}]}]
}'
# {"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 100, …}, "limitRemaining": 99, …}]}
