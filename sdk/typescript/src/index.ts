/** The E2B SDK with what Pando adds to it. Everything else of the SDK is imported from `e2b`. */

export { diff, type FileDiff } from './files.js'
export { Sandbox, type Checkpoint, type ForkAllOpts } from './sandbox.js'
export { Volume, type VolumeChange, type VolumeSnapshot } from './volume.js'
