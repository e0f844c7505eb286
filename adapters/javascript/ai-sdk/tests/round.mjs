// A round through the AI SDK's sandbox session; prints one line of JSON.
import { Cloche } from "@cloche/sdk";
import { clocheSandbox } from "../src/index.ts";

await using machine = await new Cloche().create({ name: "ai-sdk" });
const session = clocheSandbox(machine, { user: "user" });
const ran = await session.run({ command: "echo $WHO in $PWD; echo oh >&2; exit 3", env: { WHO: "ai" } });
await session.writeTextFile({ path: "deep/lines", content: "1\n2\n3\n4\n" });
await session.run({ command: "ln -s lines link", workingDirectory: "deep" });
await session.writeFile({ path: "bytes", content: new Blob([new Uint8Array(70_000)]).stream() });
const refused = await session.writeTextFile({ path: "deep", content: "x" }).then(
  () => "written",
  () => "refused",
);

const cat = await session.spawn({ command: "cat; echo end >&2", stdin: true });
const writer = cat.stdin.getWriter();
await writer.write(new TextEncoder().encode("through"));
await writer.close();
const through = [await textOf(cat.stdout), await textOf(cat.stderr), (await cat.wait()).exitCode];
const sleeper = await session.spawn({ command: "echo up; sleep 600" });
const first = await sleeper.stdout.getReader().read();
await sleeper.kill();
await sleeper.kill();
const untilGone =
  'for n in $(seq 100); do pgrep -fx "sleep 600" >/dev/null || break; sleep 0.1; done; pgrep -cfx "sleep 600"';
const abort = new AbortController();
const aborted = await session.spawn({ command: "sleep 600", abortSignal: abort.signal });
abort.abort(new Error("enough"));

console.log(
  JSON.stringify({
    ran,
    lines: await session.readTextFile({ path: "deep/lines", startLine: 2, endLine: 3 }),
    last: await session.readTextFile({ path: "deep/lines", startLine: 4, endLine: 99 }),
    bytes: [
      (await session.readBinaryFile({ path: "bytes" })).length,
      (await session.stat({ path: "bytes" })).size,
    ],
    refused,
    nothing: [
      await session.readFile({ path: "none" }),
      await session.readTextFile({ path: "none" }),
      await session.stat({ path: "none" }),
      await session.listDirectory({ path: "none" }),
      await session.deleteFile({ path: "none" }),
    ],
    listed: (await session.listDirectory({ path: "deep" })).map(({ name, type }) => `${name} ${type}`).sort(),
    followed: (await session.stat({ path: "deep/link" })).type,
    deleted: [
      await session.deleteFile({ path: "deep/link" }),
      (await session.stat({ path: "deep/lines" })).size,
    ],
    directory: await session.deleteFile({ path: "deep" }).then(
      () => "deleted",
      () => "refused",
    ),
    through,
    killed: [new TextDecoder().decode(first.value), (await sleeper.wait()).exitCode],
    left: (await session.run({ command: untilGone })).stdout,
    aborted: await Promise.resolve(aborted.wait()).then(
      () => "ended",
      (error) => error.message,
    ),
  }),
);

async function textOf(stream) {
  return await new Response(stream).text();
}
