import { ClocheApiError, ClocheConnectionError, ClocheSdkError } from "@cloche/sdk";

/** A call that cannot be carried out. The message says what would be right, for the model's next try. */
export class ToolError extends Error {
  override readonly name = "ToolError";
}

/** Remedies for a model, by the error's code. The service's message names the field and the reason. */
const remedies: Partial<Record<string, string>> = {
  not_found: "list_sandboxes, list_checkpoints, list_processes and list_services name what there is",
  unauthenticated:
    "the API key of this MCP server is not valid; ask the person who set it up for a new CLOCHE_API_KEY",
  unavailable: "get_sandbox shows its state; resume_sandbox wakes a suspended sandbox, then try again",
  failed_precondition: "get_sandbox shows the sandbox's state",
  deadline_exceeded: "it may still go on; ask again, or wait longer",
};

/** The text of an error for a model; undefined for a fault of this program. */
export function errorText(error: unknown): string | undefined {
  if (error instanceof ToolError) return error.message;
  if (error instanceof ClocheApiError) {
    const remedy = remedies[error.code];
    return `${error.code}: ${error.message}${remedy === undefined ? "" : `. ${remedy}`}`;
  }
  if (error instanceof ClocheConnectionError)
    return `unreachable: ${error.message}. What was asked may have happened; look before you repeat it`;
  if (error instanceof ClocheSdkError) return error.message;
  return undefined;
}
