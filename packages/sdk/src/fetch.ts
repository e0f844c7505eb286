/** What the SDK uses of a response. It reads or cancels each body. */
export type FetchResponse = Pick<
  Response,
  "ok" | "status" | "statusText" | "body" | "json" | "text" | "arrayBuffer"
> & { headers: Pick<Headers, "get"> };

/** What the SDK needs of `fetch`: the browser's and Node's own fit, as does `nodeFetch` of `@cloche/sdk/node`. */
export type Fetch = (url: string, init: RequestInit) => Promise<FetchResponse>;
