import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Cloche } from "@cloche/sdk";

/** A gateway that only checks keys: it answers ListSandboxes for known ones. `key-a` and `key-a2` are of team a, and so on. */
export class FakeGateway implements AsyncDisposable {
  readonly keys = new Set(["key-a", "key-a2", "key-b", "key-d"]);
  /** Answered instead of the success for a valid key. */
  failure: { status: number; code: string; message: string } | undefined;
  calls = 0;
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
    server.on("request", (request, response) => {
      this.calls += 1;
      request.resume();
      const key = request.headers.authorization?.replace("Bearer ", "") ?? "";
      const refused = { status: 401, code: "unauthenticated", message: "the API key is not known" };
      const failure = this.keys.has(key) ? this.failure : refused;
      response.writeHead(failure?.status ?? 200, { "content-type": "application/json" });
      response.end(JSON.stringify(failure ?? { sandboxes: [], next_page_token: "" }));
    });
  }

  static async start(): Promise<FakeGateway> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return new FakeGateway(server);
  }

  clientFor = (apiKey: string): Cloche => {
    const { port } = this.#server.address() as AddressInfo;
    return new Cloche({ gatewayUrl: `http://127.0.0.1:${port}`, apiKey });
  };

  teamOf = async (apiKey: string): Promise<string | undefined> =>
    this.keys.has(apiKey) ? apiKey.slice(0, 5) : undefined;

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}
