// What a data source would have made of the answers: frames, named, transformed, with the panel's field settings.
import {
  applyFieldOverrides,
  createTheme,
  DataFrame,
  FieldConfigOptionsRegistry,
  FieldType,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';

export const theme = createTheme({ colors: { mode: 'dark' } });

export interface Answer {
  refId: string;
  legend: string;
  format: string;
  series?: Array<{ metric: Record<string, string>; values: Array<[number, string]> }>;
  rows?: Array<Record<string, string | number | null>>;
}

export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  options: any;
  fieldConfig: any;
  targets?: unknown[];
  transformations?: any[];
}

standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(standardTransformers).map((one: any) => [one.id, one])).values()].map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation,
    editor: () => null,
    imageDark: '',
    imageLight: '',
  }))
);

/** A legend with its `{{label}}` filled in; `__auto` is all labels. */
function nameOf(legend: string, metric: Record<string, string>): string | undefined {
  if (legend !== '__auto') {
    return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const labels = Object.entries(metric).filter(([name]) => name !== '__name__');
  return labels.length ? `{${labels.map(([name, value]) => `${name}="${value}"`).join(', ')}}` : undefined;
}

function seriesFrames(answer: Answer): DataFrame[] {
  return answer.series!.map(({ metric, values }) =>
    toDataFrame({
      refId: answer.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: values.map(([at]) => at * 1000) },
        {
          name: 'Value',
          type: FieldType.number,
          values: values.map(([, value]) => Number(value)),
          labels: metric,
          config: { displayNameFromDS: nameOf(answer.legend, metric) },
        },
      ],
    })
  );
}

/** Instant answers as one table: time, a column per label, the value. */
function tableFrame(answer: Answer, alone: boolean): DataFrame {
  const series = answer.series!;
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== '__name__');
  const last = series.map(({ values }) => values[values.length - 1]);
  return toDataFrame({
    refId: answer.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: last.map(([at]) => at * 1000) },
      ...labels.map((name) => ({
        name,
        type: FieldType.string,
        values: series.map(({ metric }) => metric[name] ?? ''),
      })),
      {
        name: alone ? 'Value' : `Value #${answer.refId}`,
        type: FieldType.number,
        values: last.map(([, value]) => Number(value)),
      },
    ],
  });
}

function rowsFrame(answer: Answer): DataFrame {
  const rows = answer.rows!;
  return toDataFrame({
    refId: answer.refId,
    fields: Object.keys(rows[0] ?? {}).map((name) => {
      const values = rows.map((row) => row[name]);
      const numeric = values.every((value) => value === null || typeof value === 'number');
      return { name, values, type: numeric ? FieldType.number : FieldType.string };
    }),
  });
}

/** The settings that this panel uses, each taken as it stands: Grafana's own plugins declare them one by one. */
function registry(fieldConfig: any): FieldConfigOptionsRegistry {
  const { custom = {}, ...standard } = fieldConfig.defaults;
  const overridden = fieldConfig.overrides.flatMap((rule: any) => rule.properties.map((one: any) => one.id));
  const ids = new Set<string>([...Object.keys(standard), ...Object.keys(custom).map((key) => `custom.${key}`), ...overridden]);
  return new FieldConfigOptionsRegistry(() =>
    [...ids].map((id) => ({
      id,
      path: id.replace(/^custom\./, ''),
      isCustom: id.startsWith('custom.'),
      name: id,
      editor: () => null,
      override: () => null,
      process: (value: unknown) => value,
      shouldApply: () => true,
    })) as any
  );
}

/** JSON has no -Infinity, so boards carry null for the first step. */
export function withFirstStep(fieldConfig: any): any {
  const copy = structuredClone(fieldConfig);
  for (const step of copy.defaults.thresholds?.steps ?? []) {
    step.value ??= -Infinity;
  }
  return copy;
}

export async function framesOf(panel: Panel, answers: Answer[]): Promise<DataFrame[]> {
  const raw = answers.flatMap((answer) => {
    if (answer.rows) {
      return answer.rows.length ? [rowsFrame(answer)] : [];
    }
    return answer.format === 'table' ? [tableFrame(answer, answers.length === 1)] : seriesFrames(answer);
  });
  const context = { interpolate: (text: string) => text };
  const data = await firstValueFrom(transformDataFrame(panel.transformations ?? [], raw, context));
  const fieldConfig = withFirstStep(panel.fieldConfig);
  return applyFieldOverrides({
    data,
    fieldConfig,
    fieldConfigRegistry: registry(fieldConfig),
    replaceVariables: (text: string) => text,
    theme,
    timeZone: 'utc',
  });
}

