import { ClocheError, isServiceName, limits, type ServiceDefinition } from "@cloche/protocol";
import {
  type JsonObject,
  optionalBoolean,
  optionalEnvironment,
  optionalInteger,
  optionalString,
  optionalStrings,
  requiredString,
} from "../http/fields.ts";
import { readSignal, signalName } from "../processes/index.ts";
import { parseReference } from "../oci-images/reference.ts";

/**
 * Checks a service definition from a request (spec/contract.md, Service definition; services). Throws `invalid_argument` naming the
 * field. `needs` are not looked up: a service may be defined before its needs.
 */
export function readDefinition(body: JsonObject): ServiceDefinition {
  const definition: ServiceDefinition = { cmd: requiredString(body, "cmd") };
  const container = optionalBoolean(body, "container") ?? false;
  const image = optionalString(body, "image");
  if (!container && definition.cmd === "") {
    throw new ClocheError(
      "invalid_argument",
      'cmd must not be empty (only with container true it may be "", the image\'s own entrypoint)',
    );
  }
  if (container && (image === undefined || image === "")) {
    throw new ClocheError("invalid_argument", "image is required when container is true");
  }
  if (container && image !== undefined) checkImage(image);
  const fields = {
    args: optionalStrings(body, "args"),
    env: optionalEnvironment(body, "env"),
    working_dir: workingDirectory(body),
    user: optionalString(body, "user"),
    health_port: optionalInteger(body, "health_port", 1, 65_535),
    needs: needs(body),
    restart: restartPolicy(body),
    healthcheck: optionalBoolean(body, "healthcheck"),
    start_timeout_secs: optionalInteger(body, "start_timeout_secs", 1, limits.serviceStartTimeoutSecondsMax),
    stop_signal: stopSignal(body),
    stop_timeout_secs: optionalInteger(body, "stop_timeout_secs", 0, limits.serviceStopTimeoutSecondsMax),
    registry_username: optionalString(body, "registry_username"),
    registry_password: optionalString(body, "registry_password"),
    registry_ca: optionalString(body, "registry_ca"),
  };
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  Object.assign(definition, Object.fromEntries(given));
  if (container) definition.container = true;
  if (image !== undefined) definition.image = image;
  return definition;
}

/** Refuses text that is no image reference. Only the pull shows whether the image exists. */
function checkImage(image: string): void {
  try {
    parseReference(image);
  } catch (error) {
    throw new ClocheError("invalid_argument", (error as Error).message, { cause: error });
  }
}

function workingDirectory(body: JsonObject): string | undefined {
  const path = optionalString(body, "working_dir");
  if (path === undefined || path === "") return undefined;
  if (!path.startsWith("/"))
    throw new ClocheError("invalid_argument", "working_dir must be an absolute path");
  if (Buffer.byteLength(path) > limits.pathBytes) {
    throw new ClocheError("invalid_argument", `working_dir must be at most ${limits.pathBytes} bytes`);
  }
  return path;
}

function needs(body: JsonObject): string[] | undefined {
  const names = optionalStrings(body, "needs");
  names?.forEach((name, index) => {
    if (!isServiceName(name)) throw badName(`needs[${index}]`, name);
  });
  return names === undefined ? undefined : [...new Set(names)];
}

function stopSignal(body: JsonObject): string | undefined {
  const signal = optionalString(body, "stop_signal");
  return signal === undefined ? undefined : signalName(readSignal(signal, "stop_signal"));
}

function restartPolicy(body: JsonObject): ServiceDefinition["restart"] {
  const policy = optionalString(body, "restart");
  if (policy === undefined || policy === "never" || policy === "on-failure" || policy === "always")
    return policy;
  throw new ClocheError("invalid_argument", 'restart must be "never", "on-failure" or "always"');
}

/** The 400 for a name that no service can have. */
export function badName(field: string, name: string): ClocheError {
  return new ClocheError(
    "invalid_argument",
    `${field} ${JSON.stringify(name.slice(0, 100))} is no service name; use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit`,
  );
}
