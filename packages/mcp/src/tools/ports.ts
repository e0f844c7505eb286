import { allPorts, type PublicPorts } from "@cloche/sdk";
import { z } from "zod";
import { present, sandboxField, tool } from "../tool.ts";

export const openPort = tool({
  name: "open_port",
  title: "Get the address of a port",
  description:
    "Where an HTTP server that listens on a port of the sandbox is reached from outside. `link` opens it in a person's " +
    "browser, once and within a minute: make it when somebody is about to click. `url` needs the sandbox's token, or none " +
    "when `public` is true. Start the server first (start_process or set_service); to look at a page yourself, run curl " +
    "on 127.0.0.1 with exec. Set `make_public` only when a person asked for it: then everybody who can reach the service " +
    "sees the port.",
  effect: "adds",
  input: z.object({
    sandbox: sandboxField,
    port: z.int().min(1).max(65_535),
    path: z.string().startsWith("/").optional().describe("Path that the link opens. Default /."),
    make_public: z
      .boolean()
      .optional()
      .describe("true: no token is needed from now on. false: a token is needed again. Default: as it is."),
  }),
  output: z.object({
    url: z.string(),
    public: z.boolean(),
    link: z.string(),
    link_expires_at: z.string().describe("RFC 3339."),
  }),
  async run({ sandbox: id, port, path, make_public }, call) {
    const sandbox = await call.sandbox(id);
    const before = sandbox.info.public_ports;
    if (
      make_public !== undefined &&
      before.includes(port) !== make_public &&
      !(make_public && before.includes(allPorts))
    ) {
      const others: PublicPorts = before.filter((one) => one !== port);
      const public_ports = make_public ? [...others, port] : others;
      await sandbox.update({ public_ports }, { signal: call.signal });
    }
    const link = await sandbox.portLink(port, { ...present({ path }), signal: call.signal });
    const now = sandbox.info.public_ports;
    return {
      url: sandbox.portUrl(port),
      public: now.includes(port) || now.includes(allPorts),
      link: link.url,
      link_expires_at: new Date(link.expires_at_unix * 1_000).toISOString(),
    };
  },
});
