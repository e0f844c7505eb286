import type { SpawnStage } from "./types.ts";

/** A spawn that failed before the program ran. `errno` is Linux's number, 0 if none applies. */
export class SpawnError extends Error {
  override readonly name = "SpawnError";
  readonly stage: SpawnStage;
  readonly errno: number;

  constructor(stage: SpawnStage, errno: number, message: string) {
    super(message);
    this.stage = stage;
    this.errno = errno;
  }
}

/** The part of a file request that an errno concerns. For user, owner and group EINVAL means that there is none of that name. */
export type FileSubject = "path" | "destination" | "user" | "owner" | "group" | "attributes";

/** A file operation that failed inside the guest. */
export class GuestFileError extends Error {
  override readonly name = "GuestFileError";
  readonly errno: number;
  readonly subject: FileSubject;

  constructor(errno: number, subject: FileSubject, message: string) {
    super(message);
    this.errno = errno;
    this.subject = subject;
  }
}
