export { Authority, type Credentials, requestCertificate } from "./authority.ts";
export { type Identity, identityOf, type Role, roles } from "./identity.ts";
export { JoinTokens } from "./join-token.ts";
export { seal, unseal } from "./seal.ts";
export { clientSettings, serverSettings } from "./tls-settings.ts";
