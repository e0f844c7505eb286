import { seconds } from "../options.ts";
import { printFields, printJson, printLines, printTable } from "../terminal.ts";
import { act, type Registry } from "../register.ts";

/** token, keys. */
export function addTokenAndKeyCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("token <sandbox>")
    .description("print a fresh data plane token, for curl and other clients")
    .addHelpText(
      "after",
      '\nExample:\n  curl -H "Authorization: Bearer $(cloche token demo)" https://…/v1/files/list?path=/',
    )
    .action(
      act(registry, async (run, nameOrId: string) => {
        const { id } = await run.sandbox(nameOrId);
        const token = await run.cloche.gateway.issueDataPlaneToken(id, { signal: run.signal });
        if (run.json) return printJson(run.terminal, token);
        return printLines(run.terminal, token.jwt);
      }),
    );

  const keys = program.command("keys").description("API keys of the team");
  keys
    .command("create <name>")
    .description("create an API key; its secret is shown this once")
    .option("--expires-in <time>", "90, 5m, 2h, 7d; default never", seconds)
    .addHelpText("after", "\nExample:\n  cloche keys create ci --expires-in 30d")
    .action(
      act(registry, async (run, name: string, options: { expiresIn?: number }) => {
        const request = { name, expires_in_seconds: options.expiresIn ?? 0 };
        const created = await run.cloche.gateway.createApiKey(request, { signal: run.signal });
        if (run.json) return printJson(run.terminal, created);
        return printFields(run.terminal, [
          ["id", created.key.id],
          ["name", created.key.name],
          ["expires", created.key.expires_at],
          ["secret", created.secret],
        ]);
      }),
    );
  keys
    .command("ls")
    .description("list the API keys")
    .action(
      act(registry, async (run) => {
        const all = await run.cloche.gateway.listApiKeys({ signal: run.signal });
        if (run.json) return printJson(run.terminal, { keys: all });
        const rows = all.map((key) => [
          key.id,
          key.name,
          key.prefix,
          key.created_at,
          key.expires_at || "never",
          key.last_used_at || "never",
        ]);
        return printTable(run.terminal, ["ID", "NAME", "PREFIX", "CREATED", "EXPIRES", "LAST USED"], rows);
      }),
    );
  keys
    .command("revoke <id>")
    .description("make an API key useless at once")
    .action(
      act(registry, async (run, id: string) => {
        await run.cloche.gateway.revokeApiKey(id, { signal: run.signal });
        if (run.json) return printJson(run.terminal, { revoked: id });
        return printLines(run.terminal, id);
      }),
    );
}
