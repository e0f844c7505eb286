const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * The environment of a user's program: defaults, over them the sandbox's own variables, over them the request's. HOME,
 * USER, LOGNAME and SHELL are added where the program is started, from the account it runs as.
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
