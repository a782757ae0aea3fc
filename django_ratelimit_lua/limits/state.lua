local state
if denied == nil or limit_count == 1 then
  state = redis.pcall('GET', key)
else
  if not states then states = rcall('MGET', unpack_args(KEYS, 1, limit_count)) end
  state = states[i]
  -- Of a key of another type, MGET answers that there is none.
  if not state and rcall('EXISTS', key) == 1 then state = redis.pcall('GET', key) end
end
