import type { ServiceRecord } from "@cloche/sdk";
import { z } from "zod";
import { readBounded } from "../read-bounded.ts";
import { envField, maxBytesField, present, sandboxField, tool, type Tool } from "../tool.ts";

const serviceField = z
  .string()
  .regex(/^[a-z0-9][a-z0-9_-]{0,62}$/, "must be 1 to 63 of a-z, 0-9, - and _, such as web")
  .describe("Name of the service, such as web.");

const serviceRecord = z.object({
  name: z.string(),
  cmd: z.string(),
  status: z.enum(["running", "stopped", "failed", "unknown"]),
  phase: z.string().describe("pulling, starting or backoff while `status` is unknown; else empty."),
  exit_code: z.int().nullable(),
  restarts: z.int(),
  error: z.string().describe("Why it failed; else empty."),
  container: z.boolean(),
});

function recordOf(service: ServiceRecord): z.infer<typeof serviceRecord> {
  const { name, cmd, status, phase, exit_code, restarts, error, container } = service;
  return { name, cmd, status, phase, exit_code, restarts, error, container };
}

const setService = tool({
  name: "set_service",
  title: "Define a service",
  description:
    "Creates or replaces a supervised background program, on the sandbox's disk: a server or database that is started again " +
    "after a crash (`restart`), after restore_checkpoint and after a cold start. `start` (default true) starts it, its " +
    "`needs` first, and answers when it runs or has failed: with `health_port`, when that port accepts connections. A " +
    "service that runs already is restarted then. With `image` it runs in an OCI container.",
  effect: "destroys-once",
  openWorld: true,
  input: z.object({
    sandbox: sandboxField,
    service: serviceField,
    cmd: z
      .string()
      .describe(
        'Program, without a shell: use cmd "bash" with args ["-c", "…"] for a line. "" with `image`: the image\'s own.',
      ),
    args: z.array(z.string()).optional(),
    env: envField,
    working_dir: z.string().optional(),
    user: z.string().optional(),
    health_port: z
      .int()
      .min(1)
      .max(65_535)
      .optional()
      .describe("It counts as running when this TCP port accepts."),
    healthcheck: z
      .boolean()
      .optional()
      .describe(
        "false: the health check of `image` does not count. Default true, unless `health_port` is given.",
      ),
    start_timeout_secs: z
      .int()
      .min(1)
      .max(3_600)
      .optional()
      .describe("How long it may take until it counts as running. Default 60."),
    stop_signal: z
      .string()
      .optional()
      .describe("Asks the program to end, such as SIGINT. Default the image's own, or SIGTERM."),
    stop_timeout_secs: z
      .int()
      .min(0)
      .max(600)
      .optional()
      .describe("How long after that signal it is killed. Default the image's own, or 10."),
    needs: z.array(serviceField).optional().describe("Services that must run before it starts."),
    restart: z
      .enum(["never", "on-failure", "always"])
      .optional()
      .describe("When it exits by itself. Default never."),
    image: z.string().optional().describe("OCI image, such as redis:7; then it runs in a container."),
    start: z.boolean().default(true).describe("Start it now. Default true."),
  }),
  output: serviceRecord,
  async run({ sandbox: id, service, start, image, ...fields }, call) {
    using progress = call.progress(`service ${service} is defined`);
    const { services } = await call.sandbox(id);
    const { signal } = call;
    const definition = present({ ...fields, image, container: image === undefined ? undefined : true });
    const put = await services.put(service, definition, { signal });
    if (!start) return recordOf(put);
    // A new definition takes effect at the next start.
    if (put.status === "running") await services.stop(service, { signal });
    progress.report(`service ${service} is started`);
    return recordOf(await services.start(service, { signal }));
  },
});

const listServices = tool({
  name: "list_services",
  title: "List services",
  description: "The services of a sandbox and how they are.",
  effect: "reads",
  input: z.object({ sandbox: sandboxField }),
  output: z.object({ services: z.array(serviceRecord) }),
  async run({ sandbox }, call) {
    const list = await (await call.sandbox(sandbox)).services.list({ signal: call.signal });
    return { services: list.map(recordOf) };
  },
});

const startService = tool({
  name: "start_service",
  title: "Start a service",
  description:
    "Starts a service that is defined, its needs first. Answers when it runs or has failed; unchanged if it runs.",
  effect: "adds-once",
  openWorld: true,
  input: z.object({ sandbox: sandboxField, service: serviceField }),
  output: serviceRecord,
  async run({ sandbox, service }, call) {
    using _progress = call.progress(`service ${service} is started`);
    return recordOf(await (await call.sandbox(sandbox)).services.start(service, { signal: call.signal }));
  },
});

const stopService = tool({
  name: "stop_service",
  title: "Stop a service",
  description:
    "Ends a service's whole process tree: its `stop_signal`, then SIGKILL after its `stop_timeout_secs`. Its definition stays.",
  effect: "destroys-once",
  input: z.object({ sandbox: sandboxField, service: serviceField }),
  output: serviceRecord,
  async run({ sandbox, service }, call) {
    using _progress = call.progress(`service ${service} is stopped`);
    return recordOf(await (await call.sandbox(sandbox)).services.stop(service, { signal: call.signal }));
  },
});

const deleteService = tool({
  name: "delete_service",
  title: "Delete a service",
  description: "Stops a service and removes its definition.",
  effect: "destroys-once",
  input: z.object({ sandbox: sandboxField, service: serviceField }),
  output: z.object({ deleted: z.literal(true), service: z.string() }),
  async run({ sandbox, service }, call) {
    await (await call.sandbox(sandbox)).services.delete(service, { signal: call.signal });
    return { deleted: true as const, service };
  },
});

const readLogs = tool({
  name: "read_service_logs",
  title: "Read a service's log",
  description:
    "The last lines of what a service has written to stdout and stderr. `truncated`: those lines are longer than " +
    "`max_bytes`; the first of them are answered, so ask for fewer lines.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    service: serviceField,
    lines: z
      .int()
      .min(1)
      .max(10_000)
      .default(100)
      .describe("How many of the last lines, up to 10,000. Default 100."),
    max_bytes: maxBytesField,
  }),
  output: z.object({ text: z.string(), truncated: z.boolean() }),
  async run({ sandbox: id, service, lines, max_bytes }, call) {
    const sandbox = await call.sandbox(id);
    const path = `/v1/services/${service}/logs`;
    const response = await sandbox.dataPlane.request("GET", path, {
      query: { tail: lines },
      signal: call.signal,
    });
    const { bytes, more } = await readBounded(response.body ?? new Blob([]).stream(), max_bytes);
    return { text: Buffer.from(bytes).toString("utf8"), truncated: more };
  },
});

export const serviceTools: readonly Tool[] = [
  setService,
  listServices,
  startService,
  stopService,
  deleteService,
  readLogs,
];
