-- The twin of schedule.Allocate: the same operations in the same order, so that both round alike.
-- KEYS[1] is the limit's hash. Its fields: l the state, r the ramp, q the queue, b the answers of a
-- limit with a rule, s<subscription> a subscription, o whose policies these are. Numbers are passed
-- and returned as doubles of eight bytes, little-endian: converting decimals would cost more than all
-- the rest.
local max, min, floor = math.max, math.min, math.floor
local pack, unpack = struct.pack, struct.unpack

local weight, reserved, demand, want, returned, held, rtt, T, burst, newRate, newRevEpoch, newRev,
  notAfter, nonce, cInc, cSeq, cEpoch, cEff, cFraction, cRound, strict, maxReserved, newFrom, newOver,
  newTTL, newRelaxed, clockLow, clockHigh, cShifts, cRefused,
  newLead =
  unpack('<ddddddddddddddddddddddddddddddd', ARGV[2])
local waiter, newSource = ARGV[3], ARGV[4] -- '' without strict, and without an id
local mode, minRate, tolerance, recoverRate, recoverValue, answeredOK, answeredBusy, retryAfter =
  0, 0, 0, 0, 0, 0, 0, 0
if ARGV[5] then
  mode, minRate, tolerance, recoverRate, recoverValue, answeredOK, answeredBusy, retryAfter =
    unpack('<dddddddd', ARGV[5])
end

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
if notAfter > 0 and now > notAfter then return pack('<dd', 1, now) end

local field = 's' .. ARGV[1]
local fourth = strict == 1 and 'q' or 'b'
local stored, damaged = redis.pcall('HMGET', KEYS[1], 'l', field, 'r', fourth, 'o'), false
if stored.err then
  if not string.find(stored.err, '^WRONGTYPE') then return stored end
  stored, damaged = {}, true
end

-- restore: the state, checked as schedule.State.sound does. The sums find what is no number.
local state = stored[1]
local version = state and string.match(state, '^(%d+) ')
version = version and tonumber(version)
-- All versions of this script give the key a time to live. A state without one is damage, whatever
-- version it says; EXPIRE NX sets none where there is one, and then returns 0.
if version and version > 5 and version <= 1000
  and redis.call('EXPIRE', KEYS[1], 3600, 'NX') == 0 then
  return redis.error_reply('THROTTLENEWER state of version ' .. version ..
    ': this program knows 5: upgrade this program')
end
local latest = now + 86400
local inc, seq, last, revEpoch, rev, rate, tail, epoch, start, w0, r0, n0, w1, r1, n1, resumed,
  shifts, stepBy, stepAhead, stepAt, server, checked, quick
if (version == 4 or version == 5) and #state == 186 then
  inc, seq, last, revEpoch, rev, rate, tail, epoch, start, w0, r0, n0, w1, r1, n1, resumed, shifts,
    stepBy, stepAhead, stepAt, server, checked, quick = unpack('<ddddddddddddddddddddddd', state, 3)
  local sum = inc + seq + last + revEpoch + rev + rate + tail + epoch + start + w0 + r0 + n0 + w1
    + r1 + n1 + resumed + shifts + stepBy + stepAhead + stepAt + server + checked + quick
  damaged = not (sum - sum == 0
    and min(inc - 1, seq, epoch - 2, revEpoch, rev, server, n0, n1) >= 0
    and max(inc, server, r0, r1, rate) <= 2 ^ 53 and max(seq, epoch) <= 2 ^ 52 and rate >= 1e-6
    and revEpoch <= 1e13 and (now < 1e9 or revEpoch <= max(1000 * latest, newRevEpoch)) and rev <= 1e14
    and min(last, checked, resumed, start, stepAt, tail, quick, shifts) >= -1e11
    and max(last, stepAt) <= latest and max(checked, resumed, start) <= last + 1 and shifts <= 1e11
    and tail <= max(now, last) + min(31536000, 2 * (60 + 1e6 / rate))
    and quick <= max(now, last) + 2 * min(31536000, 2 * (60 + 1e6 / rate))
    and min(w0, w1, r0, r1, stepBy, stepAhead) >= -1 and max(w0, w1) <= 1e15
    and max(stepBy, stepAhead) <= 1 and max(n0, n1) <= 2)
elseif state or stored[2] or stored[3] or stored[4] or stored[5] then -- fields belong to a state
  damaged = true
end
local top, rampFrom, over, ttl, relaxed = newRate, newFrom, newOver, newTTL, newRelaxed
local lineRate, lineEpoch, seen = 0, 0, 0
if stored[3] and #stored[3] == 64 then
  top, rampFrom, over, ttl, relaxed, lineRate, lineEpoch, seen = unpack('<dddddddd', stored[3])
  local sum = top + rampFrom + over + ttl + relaxed + lineRate + lineEpoch + seen
  damaged = damaged or not (sum - sum == 0
    and min(rampFrom, over, ttl, lineRate, lineEpoch) >= 0 and top >= max(1e-6, rate or 0)
    and (over >= 1e-9 and rampFrom >= 1e-6
      or over == 0 and lineRate == 0 and lineEpoch == 0 and seen == 0)
    and (lineRate >= 1e-6 or lineRate == 0 and lineEpoch == 0) and max(top, rampFrom, lineRate) <= 2 ^ 53
    and max(over, ttl) <= 1e6 and max(lineEpoch, seen) <= latest and seen >= -1e11)
elseif stored[3] then
  damaged = true
end
local heard = mode > 0 and strict ~= 1
local busyLimit, low, good, since, cut, back, rise, notYet, healthy = 0, 0, 0, 0, 0, 0, 0, 0, 0
local seenOK, seenBusy, seenRetry, window = 0, 0, 0, 0
if heard and stored[4] and #stored[4] == 112 then
  top, busyLimit, low, good, since, cut, back, rise, notYet, healthy, seenOK, seenBusy, seenRetry,
    window = unpack('<dddddddddddddd', stored[4])
  local sum = top + busyLimit + low + good + since + cut + back + rise + notYet + healthy + seenOK
    + seenBusy + seenRetry + window
  damaged = damaged or not (sum - sum == 0 and top >= max(1e-6, rate or 0)
    and min(busyLimit, low, good, back, rise, healthy, seenOK, seenBusy, seenRetry) >= 0
    and max(top, busyLimit, low, good, back, rise, healthy) <= 2 ^ 53
    and max(seenOK, seenBusy) <= 1e15 and seenRetry <= 1e6
    and min(since, cut, notYet, window) >= -1e11 and max(since, cut, notYet, window) <= latest)
elseif heard and stored[4] then
  damaged = true
end
-- The field o has the revision of the policies in force, when their store was last heard of, and its
-- id; in a state of version 5 also a rival's claim. A program that does not know the field leaves one
-- of another revision behind. A claim is its numbers, and then the id.
local source, heardAt, rival = '', 0, nil
if state and not damaged then
  local o = stored[5] or ''
  local length = string.byte(o, 25) or 0
  local e, r, at = 0, 0, 0
  if #o > 25 then e, r, at = unpack('<ddd', o) end
  if #o >= 25 + length and length > 0 and e == revEpoch and r == rev then
    source, heardAt = string.sub(o, 26, 25 + length), at
  end
  if version == 5 then
    local n = 90 + length -- where the length of the rival's id is
    if source ~= '' and #o > n and #o == n + string.byte(o, n) then
      rival = {unpack('<dddddddd', o, 26 + length)}
      rival[9] = string.sub(o, n + 1)
      local c2, c3, c4, c5, c6, c7, c8 = rival[2], rival[3], rival[4], rival[5], rival[6], rival[7], rival[8]
      local sum = rival[1] + c2 + c3 + c4 + c5 + c6 + c7 + c8 + heardAt
      damaged = not (sum - sum == 0 and rival[9] ~= source
        and rival[1] >= 0 and rival[1] <= 1e13 and (now < 1e9 or rival[1] <= max(1000 * latest, newRevEpoch))
        and c2 >= 0 and c2 <= 1e14 and c3 >= 1e-6 and max(c3, c4) <= 2 ^ 53 and min(c4, c5, c6) >= 0
        and max(c5, c6) <= 1e6 and (c5 == 0 or c5 >= 1e-9 and c4 >= 1e-6)
        and min(c8, heardAt) >= -1e11 and max(c8, heardAt) <= latest)
    else
      damaged = true
    end
  end
end
local known = state and not damaged
if damaged then
  redis.call('DEL', KEYS[1])
  stored = {}
end
local subEpoch, k0, kw0, kr0, k1, kw1, kr1 = 0, 0, 0, 0, 0, 0, 0
local oldEpoch = 0
if known then
  oldEpoch = epoch
  if stored[2] and #stored[2] == 56 then
    subEpoch, k0, kw0, kr0, k1, kw1, kr1 = unpack('<ddddddd', stored[2])
    local sum = subEpoch + k0 + kw0 + kr0 + k1 + kw1 + kr1
    if not (sum - sum == 0 and min(subEpoch, k0, kw0, kr0, k1, kw1, kr1) >= 0
      and max(subEpoch, kr0, kr1) <= 2 ^ 53 and max(k0, kw0, k1, kw1) <= 1e15) then
      subEpoch, k0, kw0, kr0, k1, kw1, kr1 = 0, 0, 0, 0, 0, 0, 0
    end
  end
else
  inc, seq, revEpoch, rev, rate, epoch = nonce, 0, newRevEpoch, newRev, newRate, 2
  last, tail, start, resumed, checked = now, now, now, now, now
  w0, r0, n0, w1, r1, n1, shifts, stepBy, stepAhead, stepAt, server = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  quick, source, heardAt, rival = 0, newSource, 0, nil
  top, rampFrom, over, ttl, relaxed = newRate, newFrom, newOver, newTTL, newRelaxed
  lineRate, lineEpoch, seen = 0, 0, 0
  busyLimit, low, good, since, cut, back, rise, notYet, healthy = 0, 0, 0, 0, 0, 0, 0, 0, 0
  seenOK, seenBusy, seenRetry, window = 0, 0, 0, 0
end
local same = newRevEpoch == revEpoch and newRev == rev
local newer = newRevEpoch > revEpoch or newRevEpoch == revEpoch and newRev > rev
if known and not stored[3] then
  if not newer and not same then over = 0 end -- the newest policy has no ramp
  if heard and not stored[4] then top = rate end
end
-- An old state that has come back is as good as lost. So is a strict state that another server has
-- run: its last allocations may be lost.
local old = known and cInc == inc and cSeq > seq
if strict == 1 then
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%x%x%x%x%x%x%x%x%x%x%x%x)')
  local this = run and tonumber(run, 16) or 0
  old = old or known and server ~= this
  server = this
end
-- incarnate
if old then inc, shifts = nonce, 0 end
local replaces = cInc ~= 0 and (not known or old)
if replaces then inc = cInc % 1048576 * 4294967296 + nonce % 4294967296 end -- the successor
-- follow: the times of the state follow a clock that has stepped.
local by, ahead = 0, 0
if known then
  if clockHigh > 0 then
    local told = shifts
    if cInc == inc then told = told - cShifts end
    if now > clockHigh + told + 0.02 then
      by = min(now - ((clockLow + clockHigh) / 2 + told), max(0, now - checked))
      ahead = max(0, by - max(0, now - tail))
      if now - stepAt > 0.25 or stepBy + by > 0.5 then stepBy, stepAhead, stepAt = 0, 0, 0 end
      if by <= 0.5 then stepBy, stepAhead, stepAt = stepBy + by, stepAhead + ahead, now - by end
    elseif now < clockLow + told - 0.02 and stepBy > 0 and now - stepAt <= 0.25 and strict ~= 1 then
      by = -min((clockLow + clockHigh) / 2 + told - now, stepBy)
      ahead = -min(-by, stepAhead)
      stepBy, stepAhead = stepBy + by, stepAhead + ahead
    end
  end
  local moved = tail + by
  if by < 0 then moved = tail + ahead end
  if now < last + by then
    moved = moved - (last + by - now)
    by = now - last
    stepBy, stepAhead, stepAt = 0, 0, 0
  end
  if by ~= 0 then
    shifts, last, checked = shifts + by, last + by, checked + by
    resumed, start, stepAt, tail, quick = resumed + by, start + by, stepAt + by, moved, quick + by
    if lineEpoch ~= 0 then
      seen = seen + by
      lineEpoch = max(1, lineEpoch + floor(by + 0.5))
      redis.call('HSET', KEYS[1], 'r', pack('<dddddddd', top, rampFrom, over, ttl, relaxed,
        lineRate, lineEpoch, seen))
    end
    if rival then heardAt, rival[8] = heardAt + by, rival[8] + by end
    if since > 0 then since = since + by end
    if cut > 0 then cut = cut + by end
    if notYet > 0 then notYet = notYet + by end
    if window > 0 then window = window + by end
  end
  if clockHigh > 0 then checked = now end
end
-- resume
if now - last > 0.2 or resumed > now then resumed = now end
local before = last
last = now
-- slope returns a rate from some time on: constant for a second, then rising by step a second up to
-- top.
local function slope(at)
  if lineEpoch == 0 then return rate, 0, rate end
  local step = max(0, (top - rampFrom) / over)
  return min(top, rate + step * (floor(at) - floor(now))), step, top
end
local function span(at, n) -- how long n permits take
  local r, step, highest = slope(at)
  if n <= r or step <= 0 or r >= highest then return n / r end
  n = n - r
  local up = (highest - r) / step
  local rising = (r + highest) / 2 * up
  if n > rising then return 1 + up + (n - rising) / highest end
  return 1 + (math.sqrt(r * r + 2 * step * n) - r) / step
end
local function count(at, d) -- how many permits take d seconds
  local r, step, highest = slope(at)
  if d <= 1 or step <= 0 or r >= highest then return d * r end
  d = d - 1
  local up = (highest - r) / step
  if d > up then return r + (r + highest) / 2 * up + (d - up) * highest end
  return r + r * d + step * d * d / 2
end

-- arbitrate. Requests with a rule name no policy store.
local takes, asked, wasSource, twoStores = false, newSource, source, rival ~= nil
local heldTop = (stored[3] or heard) and top or rate
if known and source ~= '' and (rival or newSource ~= '' and newSource ~= source) then
  twoStores = true
  local held = {revEpoch, rev, heldTop, 0, 0, 0, 0, rival and heardAt or before, source}
  if stored[3] then held[4], held[5], held[6], held[7] = rampFrom, over, ttl, relaxed end
  local own = {newRevEpoch, newRev, newRate, newFrom, newOver, newTTL, newRelaxed, now, newSource}
  local function counts(c, beside) return now - c[8] <= max(60, 2 / min(c[3], beside[3])) end
  local function renewed(c) -- c, once own has asked
    if own[1] > c[1] or own[1] == c[1] and (own[2] > c[2] or own[2] == c[2] and own[3] < c[3]) then
      return own
    end
    if own[9] ~= '' then c[8] = now end
    return c
  end
  if rival and not counts(rival, held) then rival = nil end
  if newSource == '' then
    held = renewed(held)
    if held == own then rival = nil end
  else
    if newSource == source then
      held = renewed(held)
    elseif rival and newSource == rival[9] then
      rival = renewed(rival)
    elseif not rival or own[3] < rival[3] then
      rival = own
    end
    if rival and (rival[3] < held[3] or not counts(held, rival)) then
      local lower = rival
      rival = counts(held, lower) and held or nil
      held = lower
    end
  end
  takes = held[9] ~= '' and held[9] ~= source
  source, heardAt = held[9], held[8]
  if takes or rival then
    newRevEpoch, newRev, newRate, newFrom, newOver, newTTL, newRelaxed =
      held[1], held[2], held[3], held[4], held[5], held[6], held[7]
    if not stored[3] and not heard then top, rampFrom, over, ttl, relaxed = heldTop, 0, 0, 0, 0 end
  end
  same = newRevEpoch == revEpoch and newRev == rev
  newer = takes or newRevEpoch > revEpoch or newRevEpoch == revEpoch and newRev > rev
end
local lower = not takes and same and newRate < heldTop
if not twoStores and (newer or lower or source == '' and same) then source = newSource end
if known and (rival or twoStores or source ~= wasSource or newer) or not known and source ~= '' then
  if source == '' then
    redis.call('HDEL', KEYS[1], 'o')
  else
    local e, r = revEpoch, rev
    if newer then e, r = newRevEpoch, newRev end
    local o = pack('<ddd', e, r, rival and heardAt or 0) .. string.char(#source) .. source
    if rival then
      o = o .. pack('<dddddddd', rival[1], rival[2], rival[3], rival[4], rival[5], rival[6], rival[7], rival[8])
        .. string.char(#rival[9]) .. rival[9]
    end
    redis.call('HSET', KEYS[1], 'o', o)
  end
end
local several = takes or rival -- severalStores
-- revise
local other = rate ~= newRate or newOver > 0 -- another pace; else only the revision is newer
if heard and known then other = top ~= newRate end
if stored[3] then
  other = top ~= newRate or rampFrom ~= newFrom or over ~= newOver
    or ttl ~= newTTL or relaxed ~= newRelaxed
end
other = newer and other or lower and strict == 1
local allocated, was = 0, rate
if newer or lower then
  allocated = count(now, tail - now)
  revEpoch, rev, rate = newRevEpoch, newRev, newRate
  top, rampFrom, over, ttl, relaxed = newRate, newFrom, newOver, newTTL, newRelaxed
  if over <= 0 then
    lineEpoch = 0
    redis.call('HDEL', KEYS[1], 'r')
  end
end
if over > 0 and newOver > 0 then -- a step of the ramp, which the replica knows of
  if seen - now >= 1 then lineEpoch = max(1, lineEpoch - floor(seen - now)) end
  if ttl > 0 and now - seen > ttl and tail <= now then lineEpoch = 0 end
  local asked, second, step = want > 0 or relaxed == 0, floor(now), (top - rampFrom) / over
  if lineEpoch == 0 then
    lineRate = rampFrom
    if asked then lineEpoch = second end
  elseif second > lineEpoch and asked then
    if relaxed == 1 then
      lineRate = lineRate + step
    else
      lineRate = lineRate + step * (second - lineEpoch)
    end
    lineEpoch = second
  end
  lineRate = min(max(lineRate, rampFrom), top)
  seen, rate = now, lineRate
  redis.call('HSET', KEYS[1], 'r', pack('<dddddddd', top, rampFrom, over, ttl, relaxed, lineRate,
    lineEpoch, seen))
end
-- slow
if heard then
  if window == 0 or window > now then window = now end
  local length = now - window
  if length >= 1 then
    local answers, seconds = seenOK + seenBusy, min(floor(length), 12)
    if mode == 2 then -- by count: growth, then halvings
      local limit = busyLimit
      if limit == 0 then limit = 9999999 end
      if seenBusy > 0 then limit = min(limit, 2 * answers / length) end
      local halvings = floor(min(seenBusy, 20))
      for _ = 1, seconds do
        if recoverValue > 0 then
          limit = limit + recoverValue
        else
          limit = limit + limit * recoverRate
        end
        limit = min(max(limit / 2 ^ halvings, minRate), 9999999)
        halvings = 0
      end
      if limit >= 9999999 then limit = 0 end
      busyLimit, low, good, since, cut, back, rise, notYet, healthy = limit, 0, 0, 0, 0, 0, 0, 0, 0
    else -- by fraction; see busy.Rule.Next
      if seenBusy > tolerance * answers then
        local came, share, ok = answers / length, seenBusy / answers, seenOK / length
        local known, expected = good, min(busyLimit, 2 * max(good, came))
        if busyLimit == 0 then known, expected = healthy, healthy end
        if busyLimit == 0 or good > 0 and busyLimit >= good then since = now - length end
        ok = max(ok, expected * (1 - share))
        if known > 0 and came < 0.75 * expected then
          good = known
        elseif ok > minRate then
          good = ok
        elseif seenOK > 0 and busyLimit > 0 and busyLimit <= minRate then
          good = minRate
        elseif good == 0 then
          good = healthy
        end
        if share > 0.1 then rise = 0.02 * (1 + share) else rise = max(0.02, rise / 6.25) end
        busyLimit = max(minRate, ok * (1 - min(share, 0.05)))
        low, cut = busyLimit, now
        back = min(share + 0.1 * (now - since), 5)
        if seenRetry > 0 then
          notYet = max(notYet, now + min(seenRetry, 60))
          if seenOK == 0 then busyLimit, low = minRate, minRate end
        end
      else
        if seenOK > 0 then healthy = seenOK / length end
        if not (busyLimit == 0 or now < notYet or seenOK == 0 and busyLimit <= minRate) then
          if good == 0 then
            for _ = 1, seconds do busyLimit = busyLimit * 4 end
          elseif busyLimit < good then
            if busyLimit <= low then cut = max(cut, now - length) end
            local part, left = 0, back - (now - max(cut, notYet))
            if left > 0 then part = left / back end
            busyLimit = max(busyLimit, good - (good - low) * part * part * part)
          else
            rise = max(0.02, rise)
            for _ = 1, seconds do
              busyLimit = busyLimit + good * rise
              rise = rise * 2.5
            end
          end
          if busyLimit >= 9999999 or good > 0 and busyLimit > 100 * max(good, low) then
            busyLimit, low, good, since, cut, back, rise, notYet = 0, 0, 0, 0, 0, 0, 0, 0
          end
        end
      end
      if busyLimit > 0 then busyLimit = max(busyLimit, minRate) end
    end
    seenOK, seenBusy, seenRetry, window = 0, 0, 0, now
  end
  seenOK, seenBusy, seenRetry = seenOK + answeredOK, seenBusy + answeredBusy, max(seenRetry, retryAfter)
  redis.call('HSET', KEYS[1], 'b', pack('<dddddddddddddd', top, busyLimit, low, good, since, cut,
    back, rise, notYet, healthy, seenOK, seenBusy, seenRetry, window))
  local pace = top
  if busyLimit > 0 then pace = min(top, max(busyLimit, 1e-6)) end
  if pace ~= rate then
    if not newer then allocated = count(now, tail - now) end
    rate, other = pace, true
  end
end
-- shorten
if rate > was then n0, n1 = n0 * was / rate, n1 * was / rate end
local function furthest(rtt) return max(2, 2 / rate, 7 * min(rtt, 2 / 3)) end
if other and strict == 1 then -- paceStrict
  local last = tail - 1 / was
  local ahead = last - now - 0.1
  if ahead > 0 and not several then last = last - math.ceil(ahead * was) / was end
  tail = last + span(now, 1)
  seq = seq + 1
elseif other and tail > now then -- paceShared
  tail = now + span(now, allocated)
  local limit = now + furthest(2)
  if tail > limit and newer and not several then -- a new line: see renew in shared.go
    inc, shifts, epoch, start = nonce, 0, epoch + 2, now
    w0, r0, n0, w1, r1, n1 = 0, 0, 0, 0, 0, 0
    tail = now + span(now, 1)
  elseif tail > limit then
    tail = limit
  end
end
quick = min(quick, tail)
local stranger = cInc ~= inc
local foreign = stranger and cInc ~= 0
if stranger then
  if strict == 1 then -- meetStrict
    if old then
      tail = now + (1 + span(now, 1))
    elseif cInc ~= 0 or not known then
      tail = max(tail, now + (1 + span(now, 1)))
    end
  -- meetShared
  elseif replaces then
    tail = max(tail, now + max(span(now, held), min(newLead, furthest(rtt))))
  elseif cInc > 0 and floor(inc / 4294967296) == cInc % 1048576 then -- it has replaced that one
    tail = max(tail, now + span(now, held))
  else
    tail = max(tail, now) + span(max(now, tail), held)
  end
  returned, cSeq, cEpoch, cEff, cFraction, cRound, cRefused = 0, 0, 0, 0, 0, 0, 0
end

local n, from, share, gap, lead, eff, fraction, round, refused =
  0, 0, 0, 0, 0, cEff, cFraction, cRound, cRefused
local replyEpoch, replySeq = cEpoch, nil
if strict == 1 then -- reserve
  if returned > 0 and cSeq == seq then
    tail = tail - span(max(now, tail), returned)
    seq = seq + 1
  end
  maxReserved = min(maxReserved, max(1, floor(2 * rate - 1 + 1e-9)))
  local function free() -- how many slots may be allocated now
    return maxReserved + 1 - math.ceil(count(now, max(now, tail) - now) - 1e-6)
  end
  local queue, changed, place = {}, false, nil -- of {name, until}
  local q, i = known and stored[4] or '', 1
  while i + 9 <= #q do
    local till, n = unpack('<d', q, i), string.byte(q, i + 8)
    if by ~= 0 then
      till = till + by
      changed = true
    end
    local name = string.sub(q, i + 9, i + 8 + n)
    if till >= now and till <= now + 86400 then
      queue[#queue + 1] = {name, till}
      if name == waiter then place = #queue end
    else
      changed = true
    end
    i = i + 9 + n
  end
  local function leave()
    if place then
      table.remove(queue, place)
      changed = true
    end
  end
  local before = place and place - 1 or #queue
  local room = free()
  if waiter == '' and refused == 0 and maxReserved > 0 then room = room - 1 end
  local own = cSeq
  eff, fraction, round, replyEpoch = 0, 0, 0, 0
  if want <= 0 then
    leave()
  elseif before < room then
    local at = max(now, tail)
    leave()
    gap = span(at, 1)
    tail = at + gap
    seq = seq + 1
    own = seq
    n, from, share, refused = 1, at - now, rate, 0
  else
    refused = refused + 1
    from = max(max(now, tail) - now + (before - maxReserved) / rate, 0)
    if waiter ~= '' then
      from = min(from, max(min(2, max(0.75, 0.75 / rate)), #queue / 200))
      queue[before + 1] = {waiter, now + from + 0.25}
      changed = true
    end
  end
  if #queue > 0 and queue[1][1] ~= waiter and free() >= 1 then
    -- a user without the right to publish still allocates: the waiter asks again by its own clock
    redis.pcall('PUBLISH', 'throttle:wake:' .. string.match(queue[1][1], '^[^|]*'), queue[1][1])
  end
  if changed and #queue == 0 then
    redis.call('HDEL', KEYS[1], 'q')
  elseif changed then
    local parts = {}
    for _, w in ipairs(queue) do
      parts[#parts + 1] = pack('<d', w[2]) .. string.char(#w[1]) .. w[1]
    end
    redis.call('HSET', KEYS[1], 'q', table.concat(parts))
  end
  replySeq = own
else
  local function shareNow()
    local W, R, own = max(w0, w1, weight), max(r0, r1, reserved), reserved
    if R > rate then
      own = own * rate / R
      R = rate
    end
    return (own + (rate - R) * weight / W) / max(1, k0, k1)
  end
  -- roll
  local length = max(4 * T, 1.5 * min(5, 1 / shareNow()), 2 * (tail - now))
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
  -- giveBack
  if maxReserved > 0 and cSeq ~= seq then returned = 0 end
  tail = max(now - burst / rate, tail - span(max(now, tail), returned))
  if want > 0 then -- allot
    local newcomer = stranger or cEpoch < epoch - 1
    local found = 1
    share = shareNow()
    if demand < share then found = demand / share end
    if stranger then found = max(0.5, found) end
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

    n0 = max(n0, min(2, max(min(1 / share, 16 / rate), 3 * rtt)))
    round = max(T, n0, n1)
    if cRound > 0 then round = min(max(round, cRound / 1.25), cRound * 1.25) end
    local part = round
    if share >= rate * (1 - 1e-9) and share * part >= 4 then part = part / 2 end
    if newcomer then part = part / 2 end
    local due = share * part + cFraction
    local quantum = max(1, floor(due))
    eff = found
    if cEpoch == epoch then eff = max(found, cEff) end
    replyEpoch = epoch
    local function reach() -- how far ahead slots are allocated
      local all = furthest(rtt)
      return all - (all - max(all / 2, 6 * min(rtt, 2 / 3))) / 2 ^ min(50, floor(refused))
    end
    local one, ahead = span(max(now, tail), 1), tail - now
    local room = reach() - ahead
    if room < one - 1e-9 then -- the line is full
      refused = refused + 1
      from = max(0, ahead + one - reach())
      gap = max(0, ahead - from)
    else
      n = min(max(1, floor(want + 0.5)), quantum, max(1, floor(room / one)))
      fraction, refused = 0, 0
      if n == quantum then fraction = max(0, due - quantum) end
      local credit = 0
      if (demand < share or newcomer) and not foreign and rtt < T then
        credit = 1.5 * T
      end
      from = max(min(now, tail), tail - credit)
      local long = span(max(now, tail), n)
      if credit > 0 then
        from = min(tail, max(from, quick))
        if from < tail then quick = from + 2.5 * long end
      end
      from = from - now
      tail = tail + long
      gap, lead = long / n, ahead
      seq = seq + 1
    end
  end
end

local state = (rival and '5 ' or '4 ') .. pack('<ddddddddddddddddddddddd', inc, seq, last, revEpoch, rev, rate, tail, epoch,
  start, w0, r0, n0, w1, r1, n1, resumed, shifts, stepBy, stepAhead, stepAt, server, checked, quick)
if strict == 1 then -- counts no subscriptions
  redis.call('HSET', KEYS[1], 'l', state)
else
  redis.call('HSET', KEYS[1], 'l', state,
    field, pack('<ddddddd', subEpoch, k0, kw0, kr0, k1, kw1, kr1))
end
-- A schedule with slots far ahead has long epochs, a strict one none.
if epoch ~= oldEpoch or strict == 1 or tail - now > 600 then
  local periods = 2 / rate
  if strict == 1 then periods = max(10 / rate, min(604800, 1000 / rate)) end
  local life = max(3600, 2 * (tail - now), periods)
  redis.call('EXPIRE', KEYS[1], floor(min(1e9, life)) + 1)
  -- Remove subscriptions of old epochs.
  if epoch ~= oldEpoch and redis.call('HLEN', KEYS[1]) > 1000 then
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
      local old = #all[i + 1] ~= 56 or unpack('<d', all[i + 1]) < epoch - 1
      if string.sub(all[i], 1, 1) == 's' and old then redis.call('HDEL', KEYS[1], all[i]) end
    end
  end
end
local told = '' -- the other policy store
if rival and asked ~= '' then told = asked == source and rival[9] or source end
return pack('<dddddddddddddddddd', damaged and 2 or 0, now, n, from, share, rate, gap, lead, inc,
  replySeq or seq, replyEpoch, eff, fraction, round, stepAhead, now - resumed, shifts, refused) .. told
