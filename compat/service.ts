/** The service that the suites run against: its own, or one that runs already (CLOCHE_TEST_HOME). */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { runCommand, startService, type Status, TestService } from "../tests/fixtures/service.ts";
import { startWildcardDns } from "../tests/fixtures/wildcard-dns.ts";

export interface CompatService {
  status: Status;
  /** What a program needs to call the service by E2B's names: a domain with wildcard DNS, the service's authority. */
  e2bByDomain: NodeJS.ProcessEnv;
  /** What a program needs to call it by Cloche's names. */
  cloche: NodeJS.ProcessEnv;
  /** Runs a command where the names of sandboxes resolve. Answers its exit code; output goes to this terminal. */
  run(program: string, words: string[], cwd: string, env: NodeJS.ProcessEnv): Promise<number>;
}

const RUN_MS = 60 * 60_000;

/** Port 443: E2B's Python client takes a domain with another port as plain HTTP. */
export async function withService<T>(
  folder: string,
  use: (service: CompatService) => Promise<T>,
): Promise<T> {
  const home = process.env["CLOCHE_TEST_HOME"];
  const service =
    home === undefined
      ? await startService({ env: { CLOCHE_EDGE_PORT: "443" } })
      : await TestService.running(home);
  const dns = await startWildcardDns(service.status.base_domain);
  try {
    return await use(compatService(service.status, folder, dns.within));
  } finally {
    dns.close();
    if (home === undefined) await service.destroy();
  }
}

function compatService(
  status: Status,
  folder: string,
  within: (program: string, words: string[]) => [string, string[]],
): CompatService {
  const { PATH = "", LANG = "C.UTF-8" } = process.env;
  const home = join(folder, "home");
  mkdirSync(home);
  const common = { PATH, LANG, HOME: home, PYTHONDONTWRITEBYTECODE: "1", CI: "true" };
  const { port } = new URL(status.edge_url);
  return {
    status,
    e2bByDomain: {
      ...common,
      NODE_EXTRA_CA_CERTS: status.ca_cert,
      SSL_CERT_FILE: status.ca_cert,
      E2B_API_KEY: status.e2b?.api_key,
      E2B_DOMAIN: port === "" ? status.base_domain : `${status.base_domain}:${port}`,
    },
    cloche: { ...common, CLOCHE_URL: status.gateway_url, CLOCHE_API_KEY: status.api_key },
    async run(program, words, cwd, env) {
      const [command, all] = within(program, words);
      const { code } = await runCommand(command, all, { cwd, env, deadlineMs: RUN_MS, echo: true });
      return code;
    },
  };
}
