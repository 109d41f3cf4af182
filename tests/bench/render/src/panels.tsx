// The inside of a panel, by its kind. Kinds that live in Grafana's server and not in its library become their table.
import {
  DataFrame,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getFieldDisplayValues,
  getFieldDisplayName,
  outerJoinDataFrames,
  TimeRange,
  VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { Panel, theme, withFirstStep } from './frames';

interface Props {
  panel: Panel;
  frames: DataFrame[];
  width: number;
  height: number;
  range: { from: number; to: number };
}

const asIs = (text: string) => text;

function values({ panel, frames }: Props) {
  return getFieldDisplayValues({
    fieldConfig: withFirstStep(panel.fieldConfig),
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: asIs,
    theme,
    data: frames,
    timeZone: 'utc',
  });
}

function Stats(props: Props) {
  const found = values(props);
  return (
    <div style={{ display: 'flex' }}>
      {found.map((item, index) => (
        <BigValue
          key={index}
          value={item.display}
          width={props.width / found.length}
          height={props.height}
          count={found.length}
          colorMode={props.panel.options.colorMode}
          graphMode={props.panel.options.graphMode}
          textMode={props.panel.options.textMode}
          justifyMode={props.panel.options.justifyMode}
          theme={theme}
        />
      ))}
    </div>
  );
}

function Bars(props: Props) {
  const found = values(props);
  const height = Math.min(props.height / found.length - 8, 60);
  return (
    <>
      {found.map((item, index) => (
        <div key={index} style={{ marginBottom: 8 }}>
          <BarGauge
            field={item.field}
            display={item.view?.getFieldDisplayProcessor(item.colIndex!) ?? getDisplayProcessor({ field: item, theme } as any)}
            value={item.display}
            orientation={VizOrientation.Horizontal}
            width={props.width}
            height={height}
            displayMode={props.panel.options.displayMode}
            valueDisplayMode={props.panel.options.valueMode}
            showUnfilled={props.panel.options.showUnfilled}
            isOverflow={false}
            theme={theme}
          />
        </div>
      ))}
    </>
  );
}

function Lines(props: Props) {
  const timeRange: TimeRange = {
    from: dateTime(props.range.from),
    to: dateTime(props.range.to),
    raw: { from: 'now-1m', to: 'now' },
  };
  return (
    <TimeSeries
      frames={props.frames}
      width={props.width}
      height={props.height}
      legend={props.panel.options.legend}
      timeRange={timeRange}
      timeZone="utc"
      options={{}}
    />
  );
}

/** One table of all frames, newest row first where rows are times. */
function tableOf(frames: DataFrame[]): DataFrame {
  const timed = frames.every((frame) => frame.fields[0]?.type === FieldType.time);
  const whole = frames.length > 1 ? outerJoinDataFrames({ frames })! : frames[0];
  const names = whole.fields.map((field) => getFieldDisplayName(field, whole, frames));
  return {
    ...whole,
    fields: whole.fields.map((field, index) => ({
      ...field,
      state: { ...field.state, displayName: names[index] },
      values: timed ? [...field.values].reverse() : field.values,
    })),
  };
}

function Rows(props: Props) {
  return (
    <TableNG data={tableOf(props.frames)} width={props.width} height={props.height} cellHeight={'sm' as any} enableVirtualization={false} />
  );
}

const KINDS: Record<string, (props: Props) => JSX.Element> = { stat: Stats, bargauge: Bars, timeseries: Lines };

export const isDrawn = (kind: string) => kind in KINDS || kind === 'table';

export function Inside(props: Props) {
  if (props.frames.length === 0 || props.frames.every((frame) => frame.length === 0)) {
    return <div className="nothing">{props.panel.fieldConfig.defaults.noValue}</div>;
  }
  const Kind = KINDS[props.panel.type] ?? Rows;
  return <Kind {...props} />;
}
