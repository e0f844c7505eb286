import { ClocheApiError, type SandboxDataPlane } from "@cloche/sdk";

/** The beginning of a text file of a sandbox; empty if there is no file. */
export async function bodyText(plane: SandboxDataPlane, path: string, mostBytes: number): Promise<string> {
  try {
    const response = await plane.dataPlane.request("GET", "/v1/files", {
      query: { path },
      headers: { range: `bytes=0-${mostBytes - 1}` },
    });
    return await response.text();
  } catch (error) {
    // 416: the file is empty.
    if (error instanceof ClocheApiError && (error.status === 404 || error.status === 416)) return "";
    throw error;
  }
}
