/**
 * Brotli for answers. Connect's own uses the greatest quality: a list of 4 MB takes seconds of a thread, of which the
 * process has four for all its files.
 */
import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli } from "@connectrpc/connect-node";

const compress = promisify(brotliCompress);
const quality = 4;

export const quickBrotli: Compression = {
  ...compressionBrotli,
  compress: async (bytes) =>
    new Uint8Array(await compress(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: quality } })),
};
