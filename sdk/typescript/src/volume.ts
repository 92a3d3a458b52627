import {
  ApiClient,
  AuthenticationError,
  ConnectionConfig,
  RateLimitError,
  Volume as Official,
  VolumeError,
  VolumeNotFoundError,
  type ConnectionOpts,
} from 'e2b'

/** A kept state of a volume. */
export interface VolumeSnapshot {
  /** Its name, unique in the volume. */
  name: string
  /** When it was taken. */
  createdAt: Date
}

/** How one path of a volume differs from a snapshot. */
export interface VolumeChange {
  /** The path, from the volume's top directory: `/data/a.csv`. */
  path: string
  /** How it differs: `metadata` if only owner, mode or times do. */
  change: 'added' | 'removed' | 'modified' | 'metadata' | 'renamed'
  /** `file`, `directory`, `symlink` or another type. */
  type: string
  /** The path in the snapshot, if it was renamed. */
  from?: string
}

interface Wire {
  name: string
  createdAt: string
}

type Method = 'GET' | 'POST' | 'DELETE'

/** E2B's volume with what Pando adds. Connection options are those of `Volume.create`. */
export class Volume extends Official {
  /** Keeps the present content under a name. Mounted volumes go on. */
  async snapshot(name: string, opts?: ConnectionOpts): Promise<VolumeSnapshot> {
    return snapshotOf(await this.call<Wire>('POST', '/snapshots', { name }, opts))
  }

  /** All snapshots. */
  async snapshots(opts?: ConnectionOpts): Promise<VolumeSnapshot[]> {
    return (await this.call<Wire[]>('GET', '/snapshots', undefined, opts)).map(snapshotOf)
  }

  /** Deletes a snapshot. Forks of it stay. False if there was none. */
  async deleteSnapshot(name: string, opts?: ConnectionOpts): Promise<boolean> {
    try {
      await this.call('DELETE', `/snapshots/${encodeURIComponent(name)}`, undefined, opts)
    } catch (error) {
      if (error instanceof VolumeNotFoundError) return false
      throw error
    }
    return true
  }

  /**
   * Makes a volume of the same content. It shares all data, so this takes no time and no space.
   *
   * @param name the name of the new volume
   * @param snapshot fork this snapshot instead of the present content
   */
  async fork(name: string, snapshot?: string, opts?: ConnectionOpts): Promise<Volume> {
    const body = snapshot === undefined ? { name } : { name, snapshot }
    const made = await this.call<{ volumeID: string }>('POST', '/fork', body, opts)
    return Volume.connect(made.volumeID, opts)
  }

  /**
   * Puts the content of a snapshot in the place of the present one. Mounted volumes change under their programs.
   *
   * @returns the name of a new snapshot, which has the content that was there before
   */
  async restore(snapshot: string, opts?: ConnectionOpts): Promise<string> {
    return (await this.call<{ before: string }>('POST', '/restore', { snapshot }, opts)).before
  }

  /**
   * How the content differs from a snapshot.
   *
   * @param since the snapshot
   * @param until another snapshot; the present content if not given
   */
  changes(since: string, until?: string, opts?: ConnectionOpts): Promise<VolumeChange[]> {
    const query = new URLSearchParams(until === undefined ? { from: since } : { from: since, to: until })
    return this.call('GET', `/changes?${query}`, undefined, opts)
  }

  /** A route that the official SDK does not know, by its own HTTP client: same key, retries and certificates. */
  private async call<T>(method: Method, path: string, body?: object, opts?: ConnectionOpts): Promise<T> {
    const api = new ApiClient(new ConnectionConfig(opts)).api as unknown as Untyped
    const { data, error, response } = await api[method](`/volumes/${this.volumeId}${path}`, body ? { body } : {})
    if (response.ok) return data as T
    throw failure(response.status, (error as { message?: string } | undefined)?.message ?? response.statusText)
  }
}

/** The client without its list of routes. */
type Untyped = Record<Method, (path: string, init: object) => Promise<Answer>>

interface Answer {
  data?: unknown
  error?: unknown
  response: Response
}

function failure(status: number, message: string): Error {
  if (status === 404) return new VolumeNotFoundError(message)
  if (status === 401) return new AuthenticationError(message)
  if (status === 429) return new RateLimitError(message)
  return new VolumeError(`${status}: ${message}`)
}

function snapshotOf({ name, createdAt }: Wire): VolumeSnapshot {
  return { name, createdAt: new Date(createdAt) }
}
