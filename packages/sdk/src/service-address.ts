import { ClocheSdkError } from "./errors.ts";

type Environment = Record<string, string | undefined>;

/** The environment's settings; empty if the platform has none or forbids reading them. */
function environment(): Environment {
  try {
    return { ...(globalThis as { process?: { env?: Environment } }).process?.env };
  } catch {
    return {};
  }
}

/** Gateway and API key from options or the environment. Throws `configuration`, naming the missing or wrong one. */
export function serviceAddress(
  options: { gatewayUrl?: string; apiKey?: string; useDomains?: boolean },
  env: Environment = environment(),
): { gatewayUrl: string; apiKey: string; useDomains: boolean } {
  const gatewayUrl = options.gatewayUrl || env.CLOCHE_URL || env.CLOCHE_GATEWAY_URL;
  if (!gatewayUrl)
    throw unset(
      "no Cloche service is named: start one with `npm start`, or set CLOCHE_URL and CLOCHE_API_KEY",
    );
  if (!/^https?:\/\/[^/]/.test(gatewayUrl)) {
    throw unset(
      `CLOCHE_URL (gatewayUrl) is ${JSON.stringify(gatewayUrl)}; it must be like http://127.0.0.1:7080`,
    );
  }
  const apiKey = options.apiKey || env.CLOCHE_API_KEY?.trim();
  if (!apiKey) throw unset(`no API key: set CLOCHE_API_KEY to an API key of ${gatewayUrl}`);
  return { gatewayUrl, apiKey, useDomains: options.useDomains ?? Boolean(env.CLOCHE_EDGE_URL) };
}

const unset = (message: string): ClocheSdkError => new ClocheSdkError(message, { code: "configuration" });

/** Whether the host of a URL is this machine's loopback. */
export const isLoopback = (url: string): boolean =>
  /^https?:\/\/(127\.[\d.]+|localhost|\[::1\])(:\d+)?(\/|$)/.test(url);
