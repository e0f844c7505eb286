/** The TypeScript client of Cloche's public contract. This entry runs in browsers and in Node; `@cloche/sdk/node` adds the local CA. */
export { Cloche, type ClocheOptions } from "./cloche.ts";
export { Gateway, type SuspendOptions } from "./gateway.ts";
export type * from "./gateway-types.ts";
export { openDataPlane, Sandbox, SandboxDataPlane } from "./sandbox.ts";
export { ClocheApiError, ClocheConnectionError, ClocheSdkError, ClocheWaitError } from "./errors.ts";
export type { ExecBytesEvent, ExecBytesOptions, ExecEvent, ExecOptions } from "./exec.ts";
export {
  Files,
  type FileContent,
  type FileHead,
  type FileOptions,
  type UploadContent,
  type WriteOptions,
} from "./files.ts";
export type { FileWatch, FileChange } from "./file-watch.ts";
export { Checkpoints } from "./checkpoints.ts";
export {
  Processes,
  SandboxProcess,
  type ProcessOptions,
  type Signal,
  type TerminalOptions,
} from "./processes.ts";
export type { Attachment, AttachEvent, AttachOptions } from "./attachment.ts";
export type { PortConnection } from "./port-connection.ts";
export type { OpenWebSocket, WebSocketLike } from "./web-socket.ts";
export { Services, type ServiceExecResponse } from "./services.ts";
export { Store } from "./store.ts";
export { readEvents } from "./late-events.ts";
export type { ServerSentEvent } from "./event-stream.ts";
export { DataPlane, type DataPlaneRequest } from "./data-plane.ts";
export type { DataPlaneToken, IssueToken } from "./token-source.ts";
export type { Fetch, FetchResponse } from "./fetch.ts";
export type { CallOptions } from "./transport.ts";
export { allPorts, humanBytes, onHostLosses, onTimeouts } from "@cloche/protocol";
export type {
  CheckpointCreated,
  CheckpointDeleted,
  CheckpointRecord,
  CheckpointWaitResponse,
  Egress,
  EntryInfo,
  ErrorCode,
  ErrorReason,
  ExecResponse,
  ExistsResponse,
  FileLink,
  FileLinkRequest,
  FileWatchEvent,
  ListResponse,
  OkResponse,
  OnHostLoss,
  OnTimeout,
  ProcessInfo,
  ProcessRequest,
  PublicPorts,
  PullProgress,
  RestoreResponse,
  SandboxState,
  ServiceDefinition,
  ServiceRecord,
  StoreBatchResponse,
  StoreDeleteResponse,
  StoreKeysResponse,
  StoreOperation,
  StoreSetResponse,
  StoreValue,
} from "@cloche/protocol";
