import { describe, expect, it } from "vitest";
import { checkResolution } from "./resolution.ts";

const edge = { host: "127.0.0.1", port: 7443 };
const unknown = () => Promise.reject(new Error("ENOTFOUND"));

describe("checkResolution", () => {
  it("asks for a name under the base domain and has nothing to say when it resolves", async () => {
    const asked: string[] = [];
    const result = await checkResolution("sandboxes.example", edge, async (name) => asked.push(name));
    expect(result).toEqual({ resolves: true, remedy: "" });
    expect(asked[0]).toMatch(/^sbx-[a-z0-9]{20}\.sandboxes\.example$/);
  });

  it("names the package for localhost domains, with a curl that needs none", async () => {
    const { resolves, remedy } = await checkResolution("cloche.localhost", edge, unknown);
    expect(resolves).toBe(false);
    expect(remedy).toContain("libnss-myhostname");
    expect(remedy).toContain("curl --resolve <id>.cloche.localhost:7443:127.0.0.1");
  });

  it("names the record for other domains", async () => {
    const { remedy } = await checkResolution("sandboxes.example", edge, unknown);
    expect(remedy).toContain("*.sandboxes.example");
  });
});
