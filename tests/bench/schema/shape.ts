// What a panel may say, from the types of one Grafana version. JSON has no enums, so an enum is its values; options may
// be left out, but none may be invented.
import type { FieldConfig, FieldConfigSource, Panel } from '@grafana/schema';

type IsAny<T> = 0 extends 1 & T ? true : false;

export type Plain<T> = IsAny<T> extends true
  ? any
  : T extends string
    ? `${T}`
    : T extends number | boolean | null | undefined
      ? T
      : T extends ReadonlyArray<infer E>
        ? Array<Plain<E>>
        : T extends object
          ? { [K in keyof T]?: Plain<T[K]> }
          : T;

export type PanelOf<Kind extends string, Options, Custom> = Omit<Plain<Panel>, 'type' | 'options' | 'fieldConfig'> & {
  type: Kind;
  title: string;
  options?: Plain<Options>;
  fieldConfig?: {
    defaults: Omit<Plain<FieldConfig>, 'custom'> & { custom?: Plain<Custom> };
    overrides: Plain<FieldConfigSource['overrides']>;
  };
};
