/** Written by scripts/data-plane-fields.ts from spec/dataplane.openapi.yaml; run npm run gen. */
/** A field's own fields; `true`: any value. */
export interface KnownFields {
  readonly [name: string]: KnownFields | true;
}

export const dataPlaneFields: Readonly<Record<string, KnownFields>> = {
  "POST /v1/exec": {
    cmd: true,
    dir: true,
    env: true,
    stdin: true,
    timeout_ms: true,
    user: true,
    stdin_base64: true,
    stdin_stream: true,
    output_encoding: true,
  },
  "POST /v1/exec/stdin": {
    stream: true,
    data: true,
    data_base64: true,
    end: true,
  },
  "POST /v1/processes": {
    cmd: true,
    dir: true,
    env: true,
    user: true,
    timeout_ms: true,
    tty: {
      cols: true,
      rows: true,
    },
    stdin: true,
    merge_output: true,
    output_limit_bytes: true,
    keep_seconds: true,
    tag: true,
  },
  "POST /v1/processes/:id/signal": {
    signal: true,
  },
  "POST /v1/processes/:id/resize": {
    cols: true,
    rows: true,
  },
  "POST /v1/processes/:id/wait": {
    timeout_secs: true,
  },
  "POST /v1/files/mkdir": {
    path: true,
    path_encoded: true,
    parents: true,
  },
  "POST /v1/files/move": {
    source: true,
    source_encoded: true,
    destination: true,
    destination_encoded: true,
  },
  "POST /v1/files/copy": {
    source: true,
    source_encoded: true,
    destination: true,
    destination_encoded: true,
    recursive: true,
  },
  "POST /v1/files/chmod": {
    path: true,
    path_encoded: true,
    mode: true,
    recursive: true,
  },
  "POST /v1/files/chown": {
    path: true,
    path_encoded: true,
    user: true,
    group: true,
    recursive: true,
  },
  "POST /v1/files/link": {
    path: true,
    path_encoded: true,
    operation: true,
    expires_in_seconds: true,
    once: true,
  },
  "POST /v1/checkpoint": {
    name: true,
  },
  "POST /v1/checkpoint/wait": {
    checkpoint_id: true,
    poll_interval_ms: true,
    timeout_secs: true,
  },
  "POST /v1/restore": {
    checkpoint_id: true,
  },
  "PUT /v1/services/:name": {
    cmd: true,
    args: true,
    env: true,
    working_dir: true,
    user: true,
    health_port: true,
    healthcheck: true,
    start_timeout_secs: true,
    stop_signal: true,
    stop_timeout_secs: true,
    needs: true,
    container: true,
    image: true,
    restart: true,
    registry_username: true,
    registry_password: true,
    registry_ca: true,
  },
  "POST /v1/services/:name/exec": {
    cmd: true,
    timeout_secs: true,
  },
  "POST /v1/store/batch": {
    operations: true,
  },
  "PUT /v1/store/:key": {
    value: true,
    ttl_seconds: true,
  },
};
