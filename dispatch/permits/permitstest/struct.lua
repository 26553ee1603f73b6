-- Redis's library struct, as far as allocate.lua uses it: '<' and any number of 'd'.
do
  local floor = math.floor
  rawset(_G, 'struct', {
    pack = function(_, ...)
      local out = {}
      for i, x in ipairs({...}) do
        local m, e = math.frexp(math.abs(x))
        if x == 0 then m, e = 0, 0 else m, e = (m * 2 - 1) * 2 ^ 52, e + 1022 end
        local bytes = {}
        for j = 1, 6 do
          bytes[j] = m % 256
          m = floor(m / 256)
        end
        bytes[7] = m + (e % 16) * 16
        bytes[8] = floor(e / 16) + (x < 0 and 128 or 0)
        out[i] = string.char(bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8])
      end
      return table.concat(out)
    end,
    unpack = function(format, s, at)
      local out = {}
      for i = 1, #format - 1 do
        local from = (at or 1) + 8 * (i - 1)
        local b1, b2, b3, b4, b5, b6, b7, b8 = string.byte(s, from, from + 7)
        local m = ((((((b7 % 16) * 256 + b6) * 256 + b5) * 256 + b4) * 256 + b3) * 256 + b2) * 256 + b1
        local e = (b8 % 128) * 16 + floor(b7 / 16)
        local x = 0
        if e > 0 then x = math.ldexp(1 + m / 2 ^ 52, e - 1023) end
        out[i] = b8 >= 128 and -x or x
      end
      return unpack(out)
    end,
  })
end
