/**
 * Decides which memory images are read in the background while the machine already runs (docs/adr/0020-large-memories.md).
 */
import { stat } from "node:fs/promises";
import { join } from "node:path";

/** The file of a saved sentry's memory, as runsc names it. */
const pagesFile = "pages.img";
/** From this size on, the memory is read in the background. Below it that costs more than it saves. */
const backgroundBytesMin = 512 * 1024 * 1024;

/** Whether to read the image in the background. It may be deleted meanwhile, because the sentry holds it open. */
export async function isReadInBackground(dir: string): Promise<boolean> {
  const pages = await stat(join(dir, pagesFile)).catch(() => undefined); // a damaged image is runsc's to refuse
  return pages !== undefined && pages.size >= backgroundBytesMin;
}
