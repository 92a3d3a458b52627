import { Sandbox as Official, type SandboxApiOpts, type SandboxForkOpts, type SandboxOpts } from 'e2b'
import { diff, type FileDiff } from './files.js'

/** A state of a sandbox that has a name: a snapshot, in the words of E2B. */
export interface Checkpoint {
  /** The id of the snapshot. `Sandbox.create` takes it as a template. */
  checkpointId: string
  /** The names by which it is found, with the slug of the team and the tag: `team/name:default`. */
  names: string[]
}

/** Options of `forkAll`: those of `fork`. */
export type ForkAllOpts = Omit<SandboxForkOpts, 'count'>

type Kind = typeof Sandbox

/** E2B's sandbox with what Pando adds. */
export class Sandbox extends Official {
  /**
   * Forks the sandbox, all or none. The sandbox may run or be paused, and stays as it is.
   *
   * `fork` returns errors in the places of children that failed. This method ends the others and throws the first
   * error.
   */
  async forkAll(count = 1, opts: ForkAllOpts = {}): Promise<this[]> {
    const results = await this.fork({ ...opts, count })
    const children = results.filter((result): result is this => !(result instanceof Error))
    const failed = results.find((result) => result instanceof Error)
    if (failed !== undefined) {
      await Promise.allSettled(children.map((child) => child.kill()))
      throw failed
    }
    return children
  }

  /** Keeps the present memory and files under a name, which then means this state. The sandbox goes on. */
  async checkpoint(name: string, opts: SandboxApiOpts = {}): Promise<Checkpoint> {
    const { snapshotId, names } = await this.createSnapshot({ ...opts, name })
    return { checkpointId: snapshotId, names }
  }

  /** Starts a sandbox from a checkpoint, or from the checkpoint of a name. */
  static fromCheckpoint<S extends Kind>(
    this: S,
    checkpoint: string | Checkpoint,
    opts: SandboxOpts = {},
  ): Promise<InstanceType<S>> {
    const template = typeof checkpoint === 'string' ? checkpoint : checkpoint.checkpointId
    return this.create(template, opts)
  }

  /** All checkpoints of the team that have a name, or only that one of the given name. */
  static async checkpoints(name?: string, opts: SandboxApiOpts = {}): Promise<Checkpoint[]> {
    const pages = this.listSnapshots(name === undefined ? opts : { ...opts, name })
    const found: Checkpoint[] = []
    while (pages.hasNext) {
      const named = (await pages.nextItems()).filter((info) => info.names.length > 0)
      found.push(...named.map(({ snapshotId, names }) => ({ checkpointId: snapshotId, names })))
    }
    return found
  }

  /** Deletes a checkpoint. Sandboxes that were started from it go on. False if there was none. */
  static async deleteCheckpoint(checkpoint: string | Checkpoint, opts: SandboxApiOpts = {}): Promise<boolean> {
    const found = typeof checkpoint === 'string' ? await this.checkpoints(checkpoint, opts) : [checkpoint]
    const deleted = await Promise.all(found.map((one) => this.deleteSnapshot(one.checkpointId, opts)))
    return deleted.includes(true)
  }

  /** What another sandbox has changed below `path`: see the function `diff`. */
  diff(other: Official, path = '.', timeoutMs = 0): Promise<FileDiff> {
    return diff(this, other, path, timeoutMs)
  }
}
