// Services in OCI containers on plain Linux: the agent's bundle's own pull process, a real registry, images made by umoci, and
// the native spawner. (tests/e2e runs the same inside sandboxes.)
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { symlinkSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "@cloche/agent/build";
import type { PullProgress } from "@cloche/protocol";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { type AgentFixture, startAgent } from "../../packages/agent/src/testing/agent-fixture.ts";
import { guestBinary, guestOptions, makeDisk, until } from "../guest/guest-fixture.ts";
import {
  addBusybox,
  addProgram,
  freePort,
  ImageWorkshop,
  installTools,
  isRoot,
  type Registry,
  startGate,
  startRegistry,
} from "./registry-fixture.ts";

const imageConfig =
  "--config.env FROM_IMAGE=image --config.env FROM_SANDBOX=image --config.workingdir /var --config.entrypoint /bin/sh --config.entrypoint -c";

describe.skipIf(!isRoot)("services in containers", () => {
  let agent: AgentFixture;
  let diskPath: string;
  let bundle: string;
  let registry: Registry;
  let workshop: ImageWorkshop;

  const start = async (): Promise<void> => {
    const native = new NativeSpawner(await guestBinary(), guestOptions);
    agent = await startAgent({
      diskPath,
      spawner: native,
      program: [process.execPath, join(bundle, "agent.cjs")],
    });
    await agent.assign({ hostname: "box", env: { FROM_SANDBOX: "sandbox" } });
  };

  beforeAll(async () => {
    installTools();
    bundle = mkdtempSync(join(tmpdir(), "cloche-bundle-"));
    await buildAgent(join(bundle, "agent.cjs"));
    registry = await startRegistry();
    workshop = new ImageWorkshop();
    await workshop.build("base", {
      steps: [addBusybox, (root) => writeFileSync(join(root, "etc/release"), "one")],
      config: [...imageConfig.split(" "), "--config.cmd", "echo from the image; exec sleep 1000"],
    });
    await workshop.build("changed", {
      from: "base",
      steps: [
        (root) => {
          rmSync(join(root, "etc/release"));
          rmSync(join(root, "bin/vi"));
          symlinkSync("/bin", join(root, "programs"));
        },
      ],
      config: ["--config.user", "keeper", "--config.env", "FROM_IMAGE=changed"],
    });
    await workshop.push("base", registry.address, "team/base:1");
    await workshop.push("base", registry.address, "team/docker:1", "--format", "v2s2");
    await workshop.push("base", registry.address, "team/zstd:1", "--dest-compress-format", "zstd");
    await workshop.push("changed", registry.address, "team/changed:1");
    diskPath = makeDisk();
    await start();
  });
  afterAll(async () => {
    await agent?.close();
    await registry?.close();
    workshop?.close();
    for (const folder of [diskPath, bundle]) if (folder) rmSync(folder, { recursive: true, force: true });
  });

  const put = (name: string, body: Record<string, unknown>): Promise<unknown> =>
    agent.call("PUT", `/v1/services/${name}`, { body: { cmd: "", container: true, ...body } });
  const startService = async (name: string): Promise<Record<string, unknown>> =>
    (await agent.call("POST", `/v1/services/${name}/start`)).json;
  const exec = async (name: string, ...cmd: string[]): Promise<Record<string, unknown>> =>
    (await agent.call("POST", `/v1/services/${name}/exec`, { body: { cmd } })).json;
  const shell = async (name: string, script: string): Promise<unknown> =>
    (await exec(name, "sh", "-c", script))["stdout"];
  const log = async (name: string): Promise<string> =>
    (await agent.call("GET", `/v1/services/${name}/logs`)).text;
  const remove = (name: string): Promise<unknown> => agent.call("DELETE", `/v1/services/${name}`);
  const folder = (...path: string[]): string => join(diskPath, "cloche", ...path);

  it("runs an image as its config says", async () => {
    await put("app", { image: `${registry.address}/team/base:1` });
    expect(await startService("app")).toMatchObject({ status: "running", container: true, error: "" });
    await until("its output is in the log", async () => (await log("app")).includes("from the image"));
    const text = await log("app");
    expect(text).toMatch(/pulling .*team\/base:1/);
    expect(text).toMatch(/fetched 1\/2/);
    expect(await shell("app", "echo $FROM_IMAGE $FROM_SANDBOX $PWD $(hostname) $(id -u)")).toBe(
      "image sandbox /var app 0\n",
    );
    expect(await shell("app", "cat /etc/hosts")).toContain("127.0.1.1\tapp");
    expect(await exec("app", "sh", "-c", "echo out; echo err >&2; exit 3")).toEqual({
      stdout: "out\n",
      stderr: "err\n",
      exit_code: 3,
      timed_out: false,
    });
    expect(await exec("app", "/no/such")).toMatchObject({ exit_code: 127 });
    expect(
      (
        await agent.call("POST", "/v1/services/app/exec", {
          body: { cmd: ["sleep", "100"], timeout_secs: 1 },
        })
      ).json,
    ).toMatchObject({ exit_code: 137, timed_out: true });
    // Its own processes and files only.
    expect(await shell("app", "pidof sleep | wc -w")).toBe("1\n");
    expect(await shell("app", "ls /usr 2>&1; ls -d /mnt/disk /work 2>/dev/null; true")).not.toContain("bin");
    expect(await agent.call("POST", "/v1/services/app/stop")).toMatchObject({
      json: { status: "stopped", pid: 0 },
    });
    expect(await agent.call("POST", "/v1/services/app/exec", { body: { cmd: ["true"] } })).toMatchObject({
      status: 409,
    });
  });

  it("tells in its record how far the image is, for as long as it comes", async () => {
    // A layer of its own that no other test has brought here.
    await workshop.build("watched", {
      from: "base",
      steps: [(root) => writeFileSync(join(root, "watched"), randomBytes(1024 * 1024))],
    });
    await workshop.push("watched", registry.address, "team/watched:1");
    const gate = await startGate(registry.address);
    try {
      await put("watched", { image: `${gate.address}/team/watched:1` });
      const started = startService("watched");
      const record = async (): Promise<Record<string, unknown>> =>
        (await agent.call("GET", "/v1/services/watched")).json;
      const pull = async (): Promise<PullProgress | undefined> =>
        (await record())["pull"] as PullProgress | undefined;
      await until("a part of the layer is here", async () => ((await pull())?.bytes_done ?? 0) > 100_000);
      const seen = await record();
      expect(seen).toMatchObject({ status: "unknown", phase: "pulling", pull: { stage: "fetching" } });
      const { layers_done, layers_total, bytes_done, bytes_total } = seen["pull"] as PullProgress;
      expect(layers_total).toBe(3);
      expect(layers_done).toBeLessThan(3);
      expect(bytes_total).toBeGreaterThan(1024 * 1024);
      expect(bytes_done).toBeLessThan(bytes_total);
      const { services } = (await agent.call("GET", "/v1/services")).json as { services: object[] };
      expect(services).toContainEqual(
        expect.objectContaining({ name: "watched", phase: "pulling", pull: expect.anything() }),
      );
      gate.open();
      expect(await started).toMatchObject({ status: "running", phase: "", error: "" });
      expect(await record()).not.toHaveProperty("pull");
      expect(await log("watched")).toMatch(/fetched \d\/\d/);
    } finally {
      await gate.close();
      await remove("watched");
    }
  });

  it("keeps what a container wrote, over stops, changes of its definition and restarts of the agent", async () => {
    await startService("app");
    await shell("app", "echo kept > /var/data");
    await agent.call("POST", "/v1/services/app/stop");
    await put("app", { image: `${registry.address}/team/base:1`, args: ["exec sleep 999"] });
    await agent.control("PrepareCheckpoint");
    await agent.close();
    await start();
    expect(await startService("app")).toMatchObject({ status: "running" });
    expect(await shell("app", "cat /var/data; ps | grep -c 'sleep 99[9]'")).toBe("kept\n1\n");
  });

  it("makes a new root for another image, with whiteouts, user and cached layers", async () => {
    await put("changed", { image: `${registry.address}/team/changed:1` });
    expect(await startService("changed")).toMatchObject({ status: "running" });
    expect(await log("changed")).toMatch(/3 layers, 2 of them here already/);
    expect(
      await shell("changed", "id -un; ls /etc/release /bin/vi 2>&1 | wc -l; /programs/echo $FROM_IMAGE"),
    ).toBe("keeper\n2\nchanged\n");
    await startService("app");
    expect(await shell("app", "cat /etc/release")).toBe("one");
    await agent.call("POST", "/v1/services/changed/stop");
    await put("changed", { image: `${registry.address}/team/base:1` });
    await startService("changed");
    expect(await shell("changed", "id -un; cat /etc/release")).toBe("root\none");
  });

  it.each(["docker", "zstd"])("runs images in the %s form", async (form) => {
    await put(form, { image: `${registry.address}/team/${form}:1` });
    expect(await startService(form)).toMatchObject({ status: "running", error: "" });
    expect(await shell(form, "cat /etc/release")).toBe("one");
    await remove(form);
  });

  it("runs an image of a layout on the sandbox's disk, read as its users see it", async () => {
    execFileSync("cp", ["-r", workshop.layout, join(diskPath, "fs/root/layout")]);
    symlinkSync("/root/layout", join(diskPath, "fs/root/link"));
    await put("layout", { image: "oci:/root/link:base", cmd: "/bin/sleep", args: ["1000"] });
    expect(await startService("layout")).toMatchObject({ status: "running", error: "" });
    await remove("layout");
    for (const [image, why] of [
      ["oci:/root/layout", /several images/],
      ["oci:/root/layout:none", /no image none/],
      ["oci:/nowhere", /cannot be read/],
    ] as const) {
      await put("layout", { image });
      expect(await startService("layout")).toMatchObject({
        status: "failed",
        error: expect.stringMatching(why),
      });
    }
    await remove("layout");
  });

  it("stops, makes volumes and judges health as the image's config says", async () => {
    const words = [
      "trap 'echo got INT; exit 0' INT",
      "trap 'echo got TERM' TERM",
      "echo up",
      "while :; do sleep 0.1; done",
    ];
    const second = 1_000_000_000;
    workshop.configure("told", "base", {
      Cmd: [words.join("; ")],
      StopSignal: "SIGINT",
      Volumes: { "/data/deep": {}, "/var": {}, "/etc/release": {} },
      Healthcheck: {
        Test: ["CMD-SHELL", "cat /tmp/well"],
        Interval: second,
        StartInterval: second,
        Retries: 2,
      },
    });
    rmSync(join(diskPath, "fs/root/told"), { recursive: true, force: true });
    execFileSync("cp", ["-r", workshop.layout, join(diskPath, "fs/root/told")]);
    const image = "oci:/root/told:told";
    await put("told", { image, start_timeout_secs: 2 });
    expect(await startService("told")).toMatchObject({
      status: "failed",
      error:
        "its image's health check did not pass within 2 s: exit code 1, cat: can't open '/tmp/well': No such file or directory",
    });
    await put("told", { image });
    const started = startService("told");
    const record = async (): Promise<Record<string, unknown>> =>
      (await agent.call("GET", "/v1/services/told")).json;
    await until("it starts", async () => (await record())["phase"] === "starting");
    await until("a check", async () => (await exec("told", "touch", "/tmp/well"))["exit_code"] === 0);
    expect(await started).toMatchObject({ status: "running", error: "" });
    // A volume is a directory of root's unless the image has something there.
    expect(await shell("told", "stat -c '%F %u %a' /data/deep /var /etc/release; ls -A /data/deep")).toBe(
      "directory 0 755\ndirectory 0 755\nregular file 0 644\n",
    );
    // Checks are no processes of users.
    expect(JSON.stringify((await agent.call("GET", "/v1/processes")).json)).not.toContain("well");
    await exec("told", "mv", "/tmp/well", "/tmp/ill");
    await until("it is ill", async () => (await record())["status"] === "unknown");
    expect(await record()).toMatchObject({
      error: expect.stringContaining("its image's health check fails"),
    });
    await exec("told", "mv", "/tmp/ill", "/tmp/well");
    await until("it is well", async () => (await record())["status"] === "running");
    expect((await agent.call("POST", "/v1/services/told/stop")).json).toMatchObject({ exit_code: 0 });
    expect(await log("told")).toContain("got INT");
    expect(await log("told")).not.toContain("got TERM");
    // The definition may say other: no check, another signal.
    await exec("told", "rm", "-f", "/tmp/well");
    await put("told", { image, healthcheck: false, stop_signal: "TERM", stop_timeout_secs: 1 });
    expect(await startService("told")).toMatchObject({ status: "running" });
    await until("it is up", async () => (await log("told")).split("up\n").length > 3);
    expect((await agent.call("POST", "/v1/services/told/stop")).json).toMatchObject({ exit_code: 137 });
    expect(await log("told")).toContain("got TERM");
    await remove("told");
  });

  it("removes containers and layers that nobody uses any more", async () => {
    const blobs = (): number => readdirSync(folder("images/blobs/sha256")).length;
    const before = blobs();
    await workshop.build("lonely", {
      steps: [addBusybox, (root) => writeFileSync(join(root, "own"), "x")],
      config: ["--config.cmd", "/bin/sh"],
    });
    await workshop.push("lonely", registry.address, "team/lonely:1");
    await put("lonely", { image: `${registry.address}/team/lonely:1`, cmd: "sleep", args: ["1000"] });
    await startService("lonely");
    expect(blobs()).toBeGreaterThan(before);
    await remove("lonely");
    expect(blobs()).toBe(before);
    expect(readdirSync(folder("containers")).sort()).toEqual(["app", "changed"]);
  });

  it("fails truthfully and leaves the disk clean", async () => {
    const wrong: [string, RegExp][] = [
      [`${registry.address}/team/none:1`, /has no manifest 1/],
      [`${registry.address}/team/base@sha256:${"0".repeat(64)}`, /has no manifest/],
      [`127.0.0.1:${await freePort()}/x`, /refuses connections/],
    ];
    expect(await put("wrong", { image: "Not A Reference" })).toMatchObject({ status: 400 });
    const before = readdirSync(folder("images/blobs/sha256"));
    for (const [image, why] of wrong) {
      await put("wrong", { image });
      expect(await startService("wrong")).toMatchObject({
        status: "failed",
        phase: "",
        pid: 0,
        error: expect.stringMatching(why),
      });
      expect(await log("wrong")).toMatch(why);
    }
    await put("needs-wrong", { image: `${registry.address}/team/base:1`, needs: ["wrong"] });
    expect(await agent.call("POST", "/v1/services/needs-wrong/start")).toMatchObject({
      status: 409,
      json: { message: expect.stringContaining('"wrong"') },
    });
    await put("mute", { image: `${registry.address}/team/base:1`, cmd: "/no/such/program" });
    expect(await startService("mute")).toMatchObject({ status: "failed", exit_code: 127 });
    await workshop.build("aimless", { steps: [addBusybox] });
    await workshop.push("aimless", registry.address, "team/aimless:1");
    await put("aimless", { image: `${registry.address}/team/aimless:1` });
    expect(await startService("aimless")).toMatchObject({
      status: "failed",
      error: "the image names no program; set cmd",
    });
    for (const name of ["wrong", "needs-wrong", "mute", "aimless"]) await remove(name);
    expect(readdirSync(folder("containers")).sort()).toEqual(["app", "changed"]);
    expect(readdirSync(folder("images/blobs/sha256"))).toEqual(before);
    expect(existsSync(folder("images/incoming"))).toBe(false);
  });

  it("tidies up after a crash in the middle of a pull or a removal", async () => {
    for (const path of [
      "containers/app.new/rootfs/x",
      "containers/long-gone/rootfs/y",
      "images/incoming/z",
    ]) {
      mkdirSync(folder(path), { recursive: true });
    }
    await agent.close();
    await start();
    await until("the litter is gone", () => !existsSync(folder("images/incoming")));
    expect(readdirSync(folder("containers")).sort()).toEqual(["app", "changed"]);
    expect(await startService("app")).toMatchObject({ status: "running" });
  });

  it("refuses a blob that the registry has changed, and cleans up", async () => {
    await workshop.build("victim", {
      steps: [addBusybox, (root) => writeFileSync(join(root, "big"), Buffer.alloc(100_000, 7))],
    });
    await workshop.push("victim", registry.address, "team/victim:1");
    const manifest = JSON.parse(await fetchText(`http://${registry.address}/v2/team/victim/manifests/1`)) as {
      layers: { digest: string }[];
    };
    const [, hex = ""] = (manifest.layers[1]?.digest ?? "").split(":");
    const data = join(registry.folder, "data/docker/registry/v2/blobs/sha256", hex.slice(0, 2), hex, "data");
    const bytes = readFileSync(data);
    bytes[bytes.length - 20] = (bytes[bytes.length - 20] ?? 0) ^ 1;
    writeFileSync(data, bytes);
    await put("victim", { image: `${registry.address}/team/victim:1` });
    expect(await startService("victim")).toMatchObject({
      status: "failed",
      error: expect.stringContaining("another content"),
    });
    await remove("victim");
    expect(readdirSync(folder("containers")).sort()).toEqual(["app", "changed"]);
  });

  it("shows a pull in the record, and stops it when asked", async () => {
    const { promise: asked, resolve } = Promise.withResolvers<void>();
    const { createServer } = await import("node:http");
    const stuck = createServer(() => resolve()).listen(0, "127.0.0.1");
    await new Promise((listening) => stuck.once("listening", listening));
    const { port } = stuck.address() as { port: number };
    await put("stuck", { image: `127.0.0.1:${port}/x/y` });
    const outcome = agent.call("POST", "/v1/services/stuck/start");
    await asked;
    expect((await agent.call("GET", "/v1/services/stuck")).json).toMatchObject({
      status: "unknown",
      phase: "pulling",
      pid: 0,
    });
    expect((await agent.call("POST", "/v1/services/stuck/stop")).json).toMatchObject({
      status: "stopped",
      phase: "",
    });
    expect((await outcome).json).toMatchObject({ status: "stopped" });
    await remove("stuck");
    stuck.closeAllConnections();
    stuck.close();
    expect(readdirSync(folder("containers")).sort()).toEqual(["app", "changed"]);
  });

  it("uses credentials and a CA of the definition, and never shows them", async () => {
    const keys = mkdtempSync(join(tmpdir(), "cloche-ca-"));
    const openssl = (...args: string[]): void =>
      void execFileSync("openssl", args, { cwd: keys, stdio: "ignore" });
    openssl(
      "req",
      "-x509",
      "-newkey",
      "rsa:2048",
      "-nodes",
      "-keyout",
      "ca.key",
      "-out",
      "ca.pem",
      "-days",
      "2",
      "-subj",
      "/CN=test ca",
    );
    openssl(
      "req",
      "-newkey",
      "rsa:2048",
      "-nodes",
      "-keyout",
      "key.pem",
      "-out",
      "csr.pem",
      "-subj",
      "/CN=registry",
    );
    writeFileSync(join(keys, "ext"), "subjectAltName=IP:127.0.0.1");
    openssl(
      "x509",
      "-req",
      "-in",
      "csr.pem",
      "-CA",
      "ca.pem",
      "-CAkey",
      "ca.key",
      "-CAcreateserial",
      "-out",
      "cert.pem",
      "-days",
      "2",
      "-extfile",
      "ext",
    );
    // bcrypt of "secret-word"
    writeFileSync(join(keys, "users"), "ann:$2y$05$VBcXY1kJYHWpLDJkRq0bA.1XvC/NqJJHZ5e0BlVRoAd2SqQJVyQOq\n");
    const password = makeUser(join(keys, "users"), "ann", "secret-word");
    const secured = await startRegistry({
      tls: { cert: join(keys, "cert.pem"), key: join(keys, "key.pem") },
      users: join(keys, "users"),
    });
    try {
      if (password)
        await workshop.push("base", secured.address, "team/base:1", "--dest-creds", "ann:secret-word");
      const image = `${secured.address}/team/base:1`;
      const ca = readFileSync(join(keys, "ca.pem"), "utf8");
      await put("secured", { image });
      expect(await startService("secured")).toMatchObject({
        status: "failed",
        error: expect.stringContaining("registry_ca"),
      });
      await put("secured", { image, registry_ca: ca });
      expect(await startService("secured")).toMatchObject({
        status: "failed",
        error: expect.stringContaining("registry_username"),
      });
      await put("secured", {
        image,
        registry_ca: ca,
        registry_username: "ann",
        registry_password: "secret-word",
      });
      expect(await startService("secured")).toMatchObject({ status: "running", error: "" });
      const shown = [
        await agent.call("GET", "/v1/services"),
        await agent.call("GET", "/v1/services/secured"),
        await agent.call("GET", "/v1/services/secured/logs"),
      ];
      for (const { text } of shown) expect(text).not.toMatch(/secret-word|BEGIN CERTIFICATE/);
      expect(await shell("secured", "cat /proc/1/environ /proc/self/environ | tr '\\0' '\\n'")).not.toContain(
        "secret-word",
      );
    } finally {
      await remove("secured");
      await secured.close();
      rmSync(keys, { recursive: true, force: true });
    }
  });

  it("runs real software that another service needs, reached over the shared loopback", async () => {
    const port = await freePort();
    await workshop.build("redis", {
      steps: [
        addBusybox,
        // Debian's server is the same program as its checker, and comes without a daemon that way.
        (root) => addProgram(root, "redis-check-rdb", "redis-server"),
        (root) => addProgram(root, "redis-cli"),
      ],
      config: ["--config.entrypoint", "redis-server", "--config.cmd", "--port", "--config.cmd", "6379"],
    });
    await workshop.push("redis", registry.address, "team/redis:7");
    await put("db", {
      image: `${registry.address}/team/redis:7`,
      args: ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", "/var"],
      health_port: port,
    });
    const script = `import socket; s=socket.create_connection(("127.0.0.1",${port})); s.sendall(b"SET who web\\r\\n"); print(s.recv(99))`;
    await agent.call("PUT", "/v1/services/web", {
      body: {
        cmd: "/usr/bin/python3",
        args: ["-u", "-c", `${script}; import time; time.sleep(1000)`],
        needs: ["db"],
      },
    });
    expect(await startService("web")).toMatchObject({ status: "running", error: "" });
    expect((await agent.call("GET", "/v1/services/db")).json).toMatchObject({ status: "running" });
    await until("the web server has spoken to the database", async () => (await log("web")).includes("+OK"));
    expect(await exec("db", "redis-cli", "-p", String(port), "GET", "who")).toMatchObject({
      stdout: "web\n",
      exit_code: 0,
    });
    // The database dies: the statuses tell.
    await exec("db", "sh", "-c", "kill -9 $(pidof redis-server)");
    const db = async (): Promise<Record<string, unknown>> =>
      (await agent.call("GET", "/v1/services/db")).json;
    await until("the database has failed", async () => (await db())["status"] === "failed");
    expect(await db()).toMatchObject({
      status: "failed",
      exit_code: 137,
      pid: 0,
    });
    expect((await agent.call("GET", "/v1/services/web")).json).toMatchObject({ status: "running" });
    for (const name of ["web", "db"]) await remove(name);
  });

  it("runs no exec in what is no container", async () => {
    await agent.call("PUT", "/v1/services/plain", { body: { cmd: "/usr/bin/sleep", args: ["1000"] } });
    expect(await agent.call("POST", "/v1/services/plain/exec", { body: { cmd: ["true"] } })).toMatchObject({
      status: 400,
    });
    expect(
      await agent.call("PUT", "/v1/services/plain", { body: { cmd: "x", container: true } }),
    ).toMatchObject({ status: 400 });
    await remove("plain");
  });
});

/** Appends a user to an htpasswd file; docker-registry takes bcrypt only, which Debian's openssl cannot make but Python can check. */
function makeUser(file: string, name: string, password: string): boolean {
  const script =
    "import crypt,sys; print(sys.argv[1]+':'+crypt.crypt(sys.argv[2], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))";
  const line = execFileSync("python3", ["-W", "ignore", "-c", script, name, password], { encoding: "utf8" });
  writeFileSync(file, line);
  return true;
}

function fetchText(url: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const asked = request(
    url,
    { headers: { accept: "application/vnd.oci.image.manifest.v1+json" } },
    (response) => {
      let text = "";
      response.on("data", (chunk: Buffer) => {
        text += chunk.toString();
      });
      response.on("end", () => resolve(text));
    },
  );
  asked.on("error", reject);
  asked.end();
  return promise;
}
