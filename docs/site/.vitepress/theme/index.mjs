// The default theme with the system's fonts: others would be most of the site's size.
import Theme from 'vitepress/theme-without-fonts'
import './style.css'

export default Theme
