// Loaded by each Node.js (NODE_OPTIONS): a copy of a sandbox draws random numbers of its own. V8 cannot be told to, so another generator takes the
// place of its own then: xoshiro128** by Blackman and Vigna, with a seed from the kernel.
'use strict'

function generator() {
  const state = new Uint32Array(4)
  require('crypto').randomFillSync(state)
  const rotate = (word, bits) => (word << bits) | (word >>> (32 - bits))
  const next = () => {
    const result = Math.imul(rotate(Math.imul(state[1], 5), 7), 9) >>> 0
    const shifted = state[1] << 9
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = rotate(state[3], 11)
    return result
  }
  return () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992
}

process.on('SIGURG', () => {
  Math.random = generator()
})
