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

/** A file operation that failed inside the guest. `subject` says which of two paths it was about. */
export class GuestFileError extends Error {
  override readonly name = "GuestFileError";
  readonly errno: number;
  readonly subject: "path" | "destination";

  constructor(errno: number, subject: "path" | "destination", message: string) {
    super(message);
    this.errno = errno;
    this.subject = subject;
  }
}
