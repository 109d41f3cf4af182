#!/usr/bin/env bash
# What a release consists of, in dist/: sdist and wheel that two builds make byte for byte alike, a bill of materials of
# what a plain install brings (CycloneDX), and those packages' licences.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
export PYTHONSAFEPATH=1 PIP_DISABLE_PIP_VERSION_CHECK=1 SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "building twice, in other folders, at other times"
umask 022  # archives keep the bits of files
for turn in one two; do
  mkdir "$work/$turn"
  (git archive HEAD | tar -x -C "$work/$turn" && cd "$work/$turn" && "$python" -m build --no-isolation >/dev/null 2>"$work/$turn.log") || { cat "$work/$turn.log" >&2; exit 1; }
  sdist=("$work/$turn"/dist/*.tar.gz)
  name=$(basename "$sdist" .tar.gz)
  mkdir "$work/$turn.sdist" && tar -x -f "$sdist" -C "$work/$turn.sdist"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -C "$work/$turn.sdist" -c "$name" | gzip -n9 >"$sdist"  # setuptools writes the hour of the build into it
done
for file in "$work"/one/dist/*; do
  cmp "$file" "$work/two/dist/$(basename "$file")" || { echo "$(basename "$file") is not reproducible" >&2; exit 1; }
done
rm -rf dist  # what an earlier release left is no part of this one
mkdir dist
cp "$work"/one/dist/* dist/

echo "listing what a plain install brings"
python3 -m venv "$work/plain"
"$work/plain/bin/pip" install --quiet -c constraints.txt "$work"/one/dist/*.whl
"$work/plain/bin/pip" uninstall --quiet --yes pip setuptools
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet cyclonedx-bom==7.5.0 pip-licenses==5.5.5
"$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
  --output-file dist/sbom.cdx.json "$work/plain/bin/python"
"$work/tools/bin/pip-licenses" --python="$work/plain/bin/python" --format=markdown --with-urls --order=license \
  --output-file=dist/licences.md >/dev/null
(cd dist && sha256sum ./* > SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
ls -l dist
