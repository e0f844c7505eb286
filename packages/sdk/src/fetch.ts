/** The parts of a response that the SDK uses. It reads or cancels each body. */
export type FetchResponse = Pick<
  Response,
  "ok" | "status" | "statusText" | "body" | "json" | "text" | "arrayBuffer"
> & { headers: Pick<Headers, "get"> };

/** The fetch function that the SDK needs: that of browsers or Node, or `nodeFetch` of `@cloche/sdk/node`. */
export type Fetch = (url: string, init: RequestInit) => Promise<FetchResponse>;
