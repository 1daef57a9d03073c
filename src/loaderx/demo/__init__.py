"""What ``loaderx demo`` runs.  Importing this is light; `loaderx.demo.train` needs jax and flax."""
