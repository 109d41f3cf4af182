import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  esbuild: { jsx: 'automatic' },
  define: { 'process.env.NODE_ENV': '"production"' },
  build: { chunkSizeWarningLimit: 20000, reportCompressedSize: false, minify: false },
});
