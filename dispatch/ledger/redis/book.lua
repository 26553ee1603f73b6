-- The twin of schedule.Book: the same operations in the same order, so that both round alike.
-- KEYS[1] is the limit's hash: fields l and e have the state, field s<subscription> that of a subscription, as
-- decimals that carry a double exactly. To write decimals is what costs most: what has not changed stays as it is.
local max, min, floor, format = math.max, math.min, math.floor, string.format
local arg = {}
for i = 3, 21 do arg[i] = tonumber(ARGV[i]) end
local identity = ARGV[2]
local weight, reserved, demand, want, returned, held, rtt, T = arg[3], arg[4], arg[5], arg[6], arg[7], arg[8], arg[9], arg[10]
local burst, newRate, newRev, notAfter, nonce = arg[11], arg[12], arg[13], arg[14], arg[15]
local cInc, cSeq, cEpoch, cEff, cFraction, cRound = arg[16], arg[17], arg[18], arg[19], arg[20], arg[21]

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
if notAfter > 0 and now > notAfter then return format('1 %.17g', now) end

local field = 's' .. ARGV[1]
local stored = redis.call('HMGET', KEYS[1], 'l', 'e', field)
local inc, seq, last, rev, rate, tail, epoch, start, w0, r0, n0, w1, r1, n1, id
if stored[1] then
  local version, rest = string.match(stored[1], '^(%d+) (.*)$')
  if version and tonumber(version) > 1 then
    return redis.error_reply('THROTTLENEWER state of version ' .. version .. ', this library knows 1: upgrade it')
  end
  inc, seq, last, rev, rate, tail, id = string.match(rest or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  epoch, start, w0, r0, n0, w1, r1, n1 = string.match(stored[2] or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  inc, seq, last, rev, rate, tail = tonumber(inc), tonumber(seq), tonumber(last), tonumber(rev), tonumber(rate), tonumber(tail)
  epoch, start, w0, r0, n0 = tonumber(epoch), tonumber(start), tonumber(w0), tonumber(r0), tonumber(n0)
  w1, r1, n1 = tonumber(w1), tonumber(r1), tonumber(n1)
end
local subEpoch, k0, kw0, kr0, k1, kw1, kr1
local oldEpoch, oldW0, oldR0, oldN0, oldW1, oldR1, oldStart = epoch, w0, r0, n0, w1, r1, start
if not (inc and seq and last and rev and rate and tail and epoch and start and w0 and r0 and n0 and w1 and r1 and n1) then
  -- none, or one that makes no sense: as good as lost
  inc, seq, last, rev, rate, tail, epoch, start, id = nonce, 0, now, newRev, newRate, now, 1, now, identity
  w0, r0, n0, w1, r1, n1, oldEpoch = 0, 0, 0, 0, 0, 0, 0
else
  if stored[3] then
    subEpoch, k0, kw0, kr0, k1, kw1, kr1 = string.match(stored[3], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
    subEpoch, k0, kw0, kr0 = tonumber(subEpoch), tonumber(k0), tonumber(kw0), tonumber(kr0)
    k1, kw1, kr1 = tonumber(k1), tonumber(kw1), tonumber(kr1)
  end
  if cInc == inc and cSeq > seq then inc = nonce end
end
if not (subEpoch and k0 and kw0 and kr0 and k1 and kw1 and kr1) then
  subEpoch, k0, kw0, kr0, k1, kw1, kr1 = 0, 0, 0, 0, 0, 0, 0
end
local oldSubEpoch, oldK0, oldKw0, oldKr0, oldK1, oldKw1, oldKr1 = subEpoch, k0, kw0, kr0, k1, kw1, kr1
if now < last then
  start = start - (last - now)
  tail = tail - (last - now)
end
last = now
if identity ~= id or newRev > rev then
  if tail > now then tail = now + (tail - now) * rate / newRate end
  id, rev, rate = identity, newRev, newRate
end
local stranger = cInc ~= inc
if stranger then
  tail = max(tail, now) + held / rate
  returned, cSeq, cEpoch, cEff, cFraction, cRound = 0, 0, 0, 0, 0, 0
end
local length = max(4 * T, 2 * (tail - now))
if now - start >= length then
  w1, r1, n1, w0, r0, n0 = w0, r0, n0, 0, 0, 0
  epoch = epoch + 1
  if now - start >= 2 * length then
    w1, r1, n1 = 0, 0, 0
    epoch = epoch + 1
  end
  start = now
end
if subEpoch == epoch - 1 then
  k1, kw1, kr1, k0, kw0, kr0 = k0, kw0, kr0, 0, 0, 0
elseif subEpoch ~= epoch then
  k0, kw0, kr0, k1, kw1, kr1 = 0, 0, 0, 0, 0, 0
end
subEpoch = epoch
tail = max(now - burst / rate, tail - returned / rate)

local n, from, share, eff, fraction, round = 0, 0, 0, cEff, cFraction, cRound
local replyEpoch = cEpoch
if want > 0 then
  local function shareNow()
    local W, R, own = max(w0, w1, weight), max(r0, r1, reserved), reserved
    if R > rate then
      own = own * rate / R
      R = rate
    end
    return (own + (rate - R) * weight / W) / max(1, k0, k1)
  end
  local newcomer = stranger or cEpoch < epoch - 1
  local found = min(1, max(newcomer and 0.5 or 0, demand / shareNow()))
  local more = max(0, found - cEff)
  if newcomer then
    k0, k1 = k0 + found, k1 + found
  elseif cEpoch == epoch then
    k0, k1 = k0 + more, k1 + more
  else
    k0, k1 = k0 + found, k1 + more
  end
  local k = min(1, k0)
  local w, r = weight * k, reserved * k
  w0, r0, kw0, kr0 = w0 + (w - kw0), r0 + (r - kr0), w, r
  k = min(1, k1)
  w, r = weight * k, reserved * k
  w1, r1, kw1, kr1 = w1 + (w - kw1), r1 + (r - kr1), w, r
  share = shareNow()

  n0 = max(n0, min(2, max(1 / share, 4 * rtt)))
  round = max(T, n0, n1)
  if cRound > 0 then round = min(max(round, cRound / 1.25), cRound * 1.25) end
  local part = round
  if share >= rate * (1 - 1e-9) then part = part / 2 end
  if newcomer then part = part / 2 end
  local due = share * part + cFraction
  local quantum = max(1, floor(due))
  n = min(max(1, floor(want + 0.5)), quantum)
  fraction = 0
  if n == quantum then fraction = max(0, due - quantum) end
  local credit = 0
  if (demand < share or newcomer) and not (stranger and held > 0) then credit = 1.5 * T end
  from = max(min(now, tail), tail - credit) - now
  tail = tail + n / rate
  seq = seq + 1
  eff = found
  if cEpoch == epoch then eff = max(found, cEff) end
  replyEpoch = epoch
end

local nowText = format('%.17g', now)
local state = format('1 %d %d %s %d %.17g %.17g %s', inc, seq, nowText, rev, rate, tail, id)
local function decimals(...)
  return format('%d %.17g %.17g %.17g %.17g %.17g %.17g', ...)
end
local sameSub = subEpoch == oldSubEpoch and k0 == oldK0 and kw0 == oldKw0 and kr0 == oldKr0
  and k1 == oldK1 and kw1 == oldKw1 and kr1 == oldKr1
if epoch == oldEpoch and start == oldStart and w0 == oldW0 and r0 == oldR0 and n0 == oldN0 and w1 == oldW1 and r1 == oldR1 then
  if sameSub then
    redis.call('HSET', KEYS[1], 'l', state)
  else
    redis.call('HSET', KEYS[1], 'l', state, field, decimals(subEpoch, k0, kw0, kr0, k1, kw1, kr1))
  end
else
  redis.call('HSET', KEYS[1], 'l', state, 'e', decimals(epoch, start, w0, r0, n0, w1, r1) .. format(' %.17g', n1),
    field, decimals(subEpoch, k0, kw0, kr0, k1, kw1, kr1))
end
if epoch ~= oldEpoch then
  redis.call('EXPIRE', KEYS[1], floor(min(1e9, max(3600, 2 * (tail - now), 2 / rate))) + 1)
  if redis.call('HLEN', KEYS[1]) > 1000 then -- forget subscriptions that count for nothing any more
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
      local e = tonumber(string.match(all[i + 1], '^(%d+)'))
      if all[i] ~= 'l' and all[i] ~= 'e' and (not e or e < epoch - 1) then redis.call('HDEL', KEYS[1], all[i]) end
    end
  end
end
local effText = eff == 1 and '1' or format('%.17g', eff)
local roundText = round == T and ARGV[10] or format('%.17g', round)
return format('0 %s %d %.17g %.17g %d %d %d %s %.17g %s', nowText, n, from, share, inc, seq, replyEpoch, effText, fraction, roundText)
