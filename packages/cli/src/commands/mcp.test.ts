import { expect, test } from "vitest";
import { FakeService } from "../testing/fake-service.ts";

test("mcp ends with its client, and writes nothing that is no message", async () => {
  const service = new FakeService();
  expect(await service.run(["mcp"])).toMatchObject({ code: 0, stdout: "", stderr: "" });
  for (const noise of ["hello\n", '{"a": 1}\n', "\n\n"])
    expect(await service.run(["mcp"], noise)).toMatchObject({ code: 0, stdout: "" });
  expect(service.asked).toEqual([]);
});

test("mcp interrupted is interrupted", async () => {
  const service = new FakeService();
  service.abort.abort(new Error("interrupted"));
  expect((await service.run(["mcp"])).stdout).toBe("");
});
