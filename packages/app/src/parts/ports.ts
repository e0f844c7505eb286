import { ClocheError } from "@cloche/protocol";

/** Makes an error handler that names the setting of a port in use by another program. */
export function portTaken(setting: string, port: number): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    if (error.code !== "EADDRINUSE") throw error;
    throw new ClocheError("failed_precondition", `port ${port} is in use; set ${setting} to a free one`, {
      cause: error,
    });
  };
}
