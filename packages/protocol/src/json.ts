/**
 * How the gateway's messages are printed: snake_case, and always with every field (spec/contract.md, Both surfaces).
 */
export const gatewayJsonOptions = {
  useProtoFieldName: true,
  alwaysEmitImplicit: true,
  ignoreUnknownFields: true,
} as const;
