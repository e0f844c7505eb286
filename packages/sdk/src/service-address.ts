import { ClocheSdkError } from "./errors.ts";

type Environment = Record<string, string | undefined>;

/** The environment's settings; empty where the platform has none, or does not let us see them. */
function environment(): Environment {
  try {
    return { ...(globalThis as { process?: { env?: Environment } }).process?.env };
  } catch {
    return {};
  }
}

/** Gateway and API key as options or the environment name them. Throws `configuration`, naming what is missing or wrong. */
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

/** Whether a URL leads to this machine and to no other. */
export const isLoopback = (url: string): boolean =>
  /^https?:\/\/(127\.[\d.]+|localhost|\[::1\])(:\d+)?(\/|$)/.test(url);
