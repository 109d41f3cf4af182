// Draws the board in data.json: every panel in its place in the grid, as Grafana lays it out.
import { DataFrame, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { Answer, framesOf, Panel, theme } from './frames';
import { Inside, isDrawn } from './panels';

interface Data {
  board: { title: string; panels: Panel[] };
  answers: Record<number, Answer[]>;
  range: { from: number; to: number };
}

const WIDTH = 1500;
const GAP = 8;
const CELL = 30;

const left = (columns: number) => (columns * (WIDTH - 2 * GAP)) / 24 + GAP;
const top = (rows: number) => rows * (CELL + GAP) + 48;

function Board({ data, frames }: { data: Data; frames: Map<number, DataFrame[]> }) {
  const bottom = Math.max(...data.board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ position: 'relative', width: WIDTH, height: top(bottom), background: theme.colors.background.canvas }}>
      <h3 style={{ padding: '10px 12px' }}>{data.board.title}</h3>
      {data.board.panels.map((panel) => (
        <Placed key={panel.id} panel={panel} frames={frames.get(panel.id) ?? []} range={data.range} />
      ))}
    </div>
  );
}

function Placed({ panel, frames, range }: { panel: Panel; frames: DataFrame[]; range: Data['range'] }) {
  const { x, y, w, h } = panel.gridPos;
  const width = left(x + w) - left(x) - GAP;
  const height = h * (CELL + GAP) - GAP;
  const place = { position: 'absolute' as const, left: left(x), top: top(y), width, height };
  if (panel.type === 'row') {
    return <h5 style={{ ...place, paddingTop: 6 }}>{panel.title}</h5>;
  }
  const title = isDrawn(panel.type) ? panel.title : `${panel.title} (${panel.type}, shown as its table)`;
  return (
    <div style={place} data-panel={panel.title}>
      <PanelChrome title={title} width={width} height={height} description={panel.description}>
        {(innerWidth, innerHeight) => (
          <Inside panel={panel} frames={frames} width={innerWidth} height={innerHeight} range={range} />
        )}
      </PanelChrome>
    </div>
  );
}

async function main() {
  await initPluginTranslations('boards');
  const data: Data = await (await fetch('data.json')).json();
  const frames = new Map<number, DataFrame[]>();
  for (const panel of data.board.panels) {
    if (panel.type !== 'row') {
      frames.set(panel.id, await framesOf(panel, data.answers[panel.id]));
    }
  }
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Board data={data} frames={frames} />
    </ThemeContext.Provider>
  );
}

main().catch((error) => {
  document.body.textContent = `${error.stack}`;
  throw error;
});
