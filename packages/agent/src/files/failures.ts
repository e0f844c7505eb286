import { constants } from "node:os";
import { ClocheError, type ErrorReason } from "@cloche/protocol";
import { GuestFileError } from "../spawner/index.ts";
import { clip } from "./path.ts";

const { errno } = constants;

type Subject = readonly [field: string, value: string];

/** The fields of a request and their values, to be named in messages. */
export interface FailureSubjects {
  path: Subject;
  /** Destination of a move or a copy. */
  destination?: Subject;
  /** The user whose rights the operation has. */
  user?: Subject | undefined;
  /** The new owner of the file. */
  owner?: Subject;
  group?: Subject;
  attributes?: Subject;
  /** Messages that replace the usual ones: for a directory, for a socket, and for too many watches. */
  directory?: string;
  socket?: string;
  tooMany?: string;
}

/** Turns a failed file operation into the error of the data plane (spec/contract.md, Data plane: files). Other errors pass unchanged. */
export function fileFailure(thrown: unknown, subjects: FailureSubjects): unknown {
  if (!(thrown instanceof GuestFileError)) return thrown;
  const { subject, errno: number } = thrown;
  const [field, value] = subjects[subject] ?? subjects.path;
  if (subject === "user" || subject === "owner") return noSuchUser(field, value);
  if (subject === "group") return noSuch(field, "group", value);
  const what = `${field}: ${clip(value)}`;
  if (subject === "attributes" && number === errno.EOPNOTSUPP)
    return new ClocheError(
      "failed_precondition",
      `${what} lies on a file system that keeps no extended attributes`,
      { cause: thrown },
    );
  if (number === errno.EISDIR && subjects.directory !== undefined)
    return new ClocheError("invalid_argument", `${what} ${subjects.directory}`, {
      cause: thrown,
      reason: "is_directory",
    });
  if (number === errno.EXDEV && subjects.socket !== undefined)
    return new ClocheError("failed_precondition", `${what} ${subjects.socket}`, {
      cause: thrown,
      reason: "not_regular_file",
    });
  if (number === errno.EMFILE && subjects.tooMany !== undefined)
    return new ClocheError("resource_exhausted", `${what} ${subjects.tooMany}`, {
      cause: thrown,
      resource: "quota",
    });
  return errnoFailure(number, what, thrown);
}

export const noSuchUser = (field: string, user: string): ClocheError => noSuch(field, "user", user);

const noSuch = (field: string, kind: "user" | "group", name: string): ClocheError =>
  new ClocheError(
    "invalid_argument",
    `${field}: there is no such ${kind} in the sandbox: ${JSON.stringify(clip(name))}`,
    { reason: `no_such_${kind}` },
  );

/** `what` is the beginning of the message: the field and its path. */
// oxlint-disable-next-line max-lines-per-function -- one table, a few lines a case
export function errnoFailure(number: number, what: string, cause?: unknown): ClocheError {
  const error = (
    code: ConstructorParameters<typeof ClocheError>[0],
    rest: string,
    more: { resource?: "quota" | "disk"; reason?: ErrorReason } = {},
  ): ClocheError => new ClocheError(code, `${what} ${rest}`, { cause, ...more });
  switch (number) {
    case errno.ENOENT:
      return error("not_found", "does not exist");
    case errno.EEXIST:
      return error("already_exists", "exists already");
    case errno.ENOTEMPTY:
      return error(
        "failed_precondition",
        "is a directory that is not empty; pass recursive=true to delete it",
        { reason: "not_empty" },
      );
    case errno.EISDIR:
      return error("invalid_argument", "is a directory; a file is needed here", { reason: "is_directory" });
    case errno.ENOTDIR:
      return error("invalid_argument", "is not a directory, or leads through a file", {
        reason: "not_directory",
      });
    case errno.EINVAL:
      return error(
        "invalid_argument",
        "cannot be used here: a regular file is needed, and nothing moves into itself",
        { reason: "not_regular_file" },
      );
    case errno.ELOOP:
      return error("invalid_argument", "leads through too many symlinks");
    case errno.ENAMETOOLONG:
      return error("invalid_argument", "has a name that is too long");
    case errno.EACCES:
    case errno.EPERM:
    case errno.EROFS:
      return error("permission_denied", "may not be changed or read");
    case errno.EBUSY:
    case errno.ETXTBSY:
      return error("failed_precondition", "is in use: a mount point, or changed while it was worked on", {
        reason: "in_use",
      });
    case errno.EXDEV:
      return error("failed_precondition", "is a socket, which cannot be moved to another file system", {
        reason: "not_regular_file",
      });
    case errno.ESRCH:
      return error("not_found", "is of a process that has ended", { reason: "process_ended" });
    case errno.EAGAIN:
    case errno.ENXIO:
    case errno.ENODEV:
    case errno.EOPNOTSUPP:
    case errno.EFAULT:
      return error("invalid_argument", "cannot be read or changed as a file: the system makes it up", {
        reason: "not_regular_file",
      });
    case errno.E2BIG:
      return error("failed_precondition", "has too many directories in one directory");
    case errno.ENOSPC:
    case errno.EDQUOT:
    case errno.EFBIG:
      return error("resource_exhausted", "does not fit: the disk is full", { resource: "disk" });
    case errno.EMFILE:
    case errno.ENFILE:
    case errno.ENOMEM:
      return error("resource_exhausted", "cannot be opened now: too many files are open", {
        resource: "quota",
      });
    default:
      return error("internal", `could not be processed (errno ${number})`);
  }
}
