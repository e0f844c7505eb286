/** Why an image cannot be used. The message is public: it goes into the service's record and log. */
export class ImageError extends Error {
  override readonly name = "ImageError";
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
  }
}
