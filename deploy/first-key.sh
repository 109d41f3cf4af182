#!/bin/sh
# The operator's key of the API, made once and kept where only root of this volume can read it; never in a log.
set -eu
umask 077
[ -s /keys/operator ] && exit 0
energyopt keys create operator --scope admin > /keys/operator.new
mv /keys/operator.new /keys/operator
