/** Checks the settings of a cluster's role before anything is changed. */
import { type Config, ConfigError } from "@cloche/base";
import type { Role } from "@cloche/trust";

/** Throws a ConfigError that names the missing or wrong setting and says what would be right. */
export function checkRole(role: Role, config: Config): void {
  const needs = (isThere: boolean, message: string): void => {
    if (!isThere) throw new ConfigError(`cloche ${role}: ${message} (docs/clusters.md)`);
  };
  const { databaseUrl, clusterSecretFile, blobUrl, clusterGateways } = config;
  if (role === "gateway") {
    needs(databaseUrl !== "", "set CLOCHE_DATABASE_URL to the cluster's PostgreSQL");
    needs(clusterSecretFile !== "", "set CLOCHE_CLUSTER_SECRET_FILE to the file that all gateways share");
  } else {
    needs(
      clusterGateways.length > 0,
      "set CLOCHE_CLUSTER_GATEWAYS to host:port of the gateways' cluster ports",
    );
    needs(databaseUrl === "", "CLOCHE_DATABASE_URL is for gateways: a host or an edge must not have it");
    needs(
      clusterSecretFile === "",
      "CLOCHE_CLUSTER_SECRET_FILE is for gateways: a host or an edge must not have it",
    );
  }
  if (role !== "edge")
    needs(blobUrl !== "", "set CLOCHE_BLOB_URL to the storage that the whole cluster shares");
}
