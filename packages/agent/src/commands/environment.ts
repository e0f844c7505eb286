const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * The environment of a user's program, also of a service or container: defaults, overridden by the sandbox's variables, overridden by the
 * request's. The spawner adds HOME, USER, LOGNAME and SHELL from the account that the program runs as.
 */
export function programEnvironment(
  ...layers: readonly (Readonly<Record<string, string>> | undefined)[]
): Record<string, string> {
  // Spread, not assigned: a variable may be called `__proto__`.
  return layers.reduce<Record<string, string>>((all, layer) => ({ ...all, ...layer }), {
    PATH: defaultPath,
    LANG: "C.UTF-8",
    TERM: "xterm-256color",
  });
}
