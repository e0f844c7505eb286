import { ClocheError } from "@cloche/protocol";

/** Names the setting of a port that another program has. */
export function portTaken(setting: string, port: number): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    if (error.code !== "EADDRINUSE") throw error;
    throw new ClocheError("failed_precondition", `port ${port} is in use; set ${setting} to a free one`, {
      cause: error,
    });
  };
}
