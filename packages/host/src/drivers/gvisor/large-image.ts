// Which memory images a machine is restored from while they are still read (docs/adr/0020-large-memories.md).
import { stat } from "node:fs/promises";
import { join } from "node:path";

/** The file of a saved sentry's memory, as runsc names it. */
const PAGES = "pages.img";
/** From this on the machine runs while its memory is still read . Below it costs more than it saves. */
const BACKGROUND_BYTES_MIN = 512 * 1024 * 1024;

/** Whether the machine goes on before all of the image is read. The sentry holds the file open, so it may be deleted meanwhile. */
export async function isReadInBackground(dir: string): Promise<boolean> {
  const pages = await stat(join(dir, PAGES)).catch(() => undefined); // a damaged image is runsc's to refuse
  return pages !== undefined && pages.size >= BACKGROUND_BYTES_MIN;
}
