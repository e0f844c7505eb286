import type { SpawnStage } from "./types.ts";

/** A spawn that did not come to run the program. `errno` is Linux's number, 0 where none applies. */
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

/** What of a file request an errno is about; EINVAL of user, owner and group: there is no such one. */
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
