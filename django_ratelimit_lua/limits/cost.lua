if forced then units = forced end
-- A cost of 0 asks what a cost of 1 would be told.
local cost = units > 0 and units or 1
